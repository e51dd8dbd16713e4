"""Stories by the thousand, one again, or one with as little in it as still fails."""

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

TRIES = 300  # stories a shrink may play


def replay(seed: int, events: int, *, calm: bool = False) -> int:
    """Once, with its last events."""
    outcome = story.play(plan.draw(seed, calm=calm), verbose=True)
    print("\n".join(lines(outcome, events)))
    return int(bool(outcome.violations))


def lines(outcome: Outcome, events: int) -> list[str]:
    """A story in words."""
    drawn = outcome.plan
    said = [f"seed {drawn.seed}: {len(drawn.operations)} operations, {len(drawn.harm)} times harm"]
    said += [f"  asked {one}" for one in drawn.operations] + [f"  harm  {one}" for one in drawn.harm]
    said += [f"{moment - EPOCH:10.4f} {who}: {text}" for moment, who, text in outcome.trace[-events:]]
    said += [f"VIOLATION {one}" for one in outcome.violations] or ["no violation"]
    said.append(f"trace {outcome.hash:08x}, {outcome.events} events, {outcome.seconds:.0f} s of virtual time")
    return said


def run(seeds: Sequence[int], jobs: int = 1, most: int = 20, *, calm: bool = False, verbose: bool = False) -> int:
    """Each once; the last line says how it went. Ends early after so many seeds that fail."""
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
    """One line."""
    more = f" (+{len(outcome.violations) - 1})" if outcome.violations[1:] else ""
    return f"seed {outcome.plan.seed}: {outcome.violations[0] if outcome.violations else 'fine'}{more}"


def outcomes(seeds: Sequence[int], jobs: int, *, calm: bool = False) -> Iterator[Outcome]:
    """In any order, when there are several jobs. Databases in memory are copied by a fork like all else."""
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
    """Leave out operations and harm while the same kind of thing is still found, and tell what is left."""
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
    """The plan without halves, then without one thing at a time, the last first."""
    for name in ("harm", "operations"):
        things = getattr(whole, name)
        if len(things) > 3:
            yield replace(whole, **{name: things[: len(things) // 2]})
            yield replace(whole, **{name: things[len(things) // 2 :]})
    for name in ("harm", "operations"):
        things = getattr(whole, name)
        for number in reversed(range(len(things))):
            yield replace(whole, **{name: things[:number] + things[number + 1 :]})
