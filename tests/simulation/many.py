"""Run many seeds, replay one, or shrink one to a minimal plan that still fails."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tests.simulation import patches, plan, story
from tests.simulation.kernel import EPOCH
from tests.simulation.plan import Plan
from tests.simulation.story import Outcome

TRIES = 300  # runs of one shrink at most


def replay(seed: int, events: int, *, calm: bool = False) -> int:
    """Run one seed and print its last events. Return 1 when a rule was violated."""
    outcome = story.play(plan.draw(seed, calm=calm), verbose=True)
    print("\n".join(lines(outcome, events)))
    return int(bool(outcome.violations))


def lines(outcome: Outcome, events: int) -> list[str]:
    """Return the text of a run: plan, last events, violations."""
    drawn = outcome.plan
    said = [f"seed {drawn.seed}: {len(drawn.operations)} operations, {len(drawn.harm)} times harm"]
    said += [f"  asked {one}" for one in drawn.operations] + [f"  harm  {one}" for one in drawn.harm]
    said += [f"{moment - EPOCH:10.4f} {who}: {text}" for moment, who, text in outcome.trace[-events:]]
    said += [f"VIOLATION {one}" for one in outcome.violations] or ["no violation"]
    said.append(f"trace {outcome.hash:08x}, {outcome.events} events, {outcome.seconds:.0f} s of virtual time")
    return said


def run(seeds: Sequence[int], jobs: int = 1, most: int = 20, *, calm: bool = False, verbose: bool = False) -> int:
    """Run each seed once and print a summary as the last line. Ends after `most` failed seeds. Return 1 for any."""
    begun, operations, failed, played = patches.real_time(), 0, 0, 0
    for outcome in outcomes(seeds, jobs, calm=calm):
        played += 1
        operations += outcome.accepted
        failed += bool(outcome.violations)
        if verbose or outcome.violations:
            print(words(outcome), flush=True)
        if failed >= most:
            break
    seconds = patches.real_time() - begun
    pace = played / seconds * 3600
    print(f"{played} seeds, {operations} operations, {failed} violations, {pace:.0f} seeds/hour")
    sys.stdout.flush()
    return int(bool(failed))


def words(outcome: Outcome) -> str:
    """Return one line on a run."""
    more = f" (+{len(outcome.violations) - 1})" if outcome.violations[1:] else ""
    return f"seed {outcome.plan.seed}: {outcome.violations[0] if outcome.violations else 'fine'}{more}"


def outcomes(seeds: Sequence[int], jobs: int, *, calm: bool = False) -> Iterator[Outcome]:
    """Yield the results, in any order with several jobs. A fork copies the databases in memory, too."""
    if jobs <= 1:
        yield from (_one(seed, calm=calm) for seed in seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(_one, calm=calm), seeds, chunksize=4)


def _one(seed: int, *, calm: bool = False) -> Outcome:
    outcome = story.play(plan.draw(seed, calm=calm))
    outcome.trace = []
    return outcome


def shrink(seed: int, events: int) -> int:
    """Leave out operations and faults while the same kind of violation is found. Print the smallest plan; return 1."""
    smallest = plan.draw(seed)
    outcome = story.play(smallest)
    if not outcome.violations:
        print(f"seed {seed} is fine")
        return 0
    kind = outcome.violations[0].partition(":")[0]
    left = TRIES
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _without_one(smallest):
            left -= 1
            if left <= 0:
                break
            if any(one.startswith(kind) for one in story.play(smaller).violations):
                smallest, progress = smaller, True
                break
    print("\n".join(lines(story.play(smallest, verbose=True), events)))
    return 1


def _without_one(whole: Plan) -> Iterator[Plan]:
    """Yield the plan without one half, then without one item at a time, the last first."""
    for name in ("harm", "operations"):
        things = getattr(whole, name)
        if len(things) > 3:
            yield replace(whole, **{name: things[: len(things) // 2]})
            yield replace(whole, **{name: things[len(things) // 2 :]})
    for name in ("harm", "operations"):
        things = getattr(whole, name)
        for number in reversed(range(len(things))):
            yield replace(whole, **{name: things[:number] + things[number + 1 :]})
