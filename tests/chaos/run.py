"""One seed: clients and harm at once, then rest, then the books."""

from __future__ import annotations

import time
from itertools import chain

from tests.chaos import ledger, monkey, records, report
from tests.chaos.ledger import Finding
from tests.chaos.place import Place
from tests.chaos.report import Verdict
from tests.chaos.story import Story
from tests.chaos.supervisor import Supervisor
from tests.live import books
from tests.live.cloud import eventually

CLIENTS = 8
REST_SECONDS = 120.0
SUMS_SECONDS = 45.0


def seed(place: Place, seed: int, operations: int, seconds: float) -> Verdict:
    """Tell the story of a seed, and judge it."""
    began = time.monotonic()
    story = Story(place, f"s{seed}x{int(time.time())}", operations)
    supervisor = Supervisor(place, say)
    with supervisor.watching():
        with monkey.loose(seed, supervisor) as harm:
            story.tell(seed, CLIENTS, seconds)
        took = time.monotonic() - began
        say(f"seed {seed}: {story.count()} operations in {took:.0f} s ({report.mix(story.asked)})")
        rest(place, supervisor)
        twins = one_of_each(supervisor)
        verdict = judge(place, f"seed {seed}", story)
        verdict.findings += twins
        place.spilled |= bool(twins)
    verdict.seconds, verdict.deaths = time.monotonic() - began, sum(supervisor.deaths.values())
    verdict.harm = [str(blow) for blow in harm]
    verdict.ways = [blow.harm.how for blow in harm if blow.hit]
    if not verdict.good:
        print("\n".join(["what was done to it:", *verdict.harm]))
        print(verdict.culprits, flush=True)
    return verdict


def rest(place: Place, supervisor: Supervisor, seconds: float = REST_SECONDS) -> None:
    """Until everything runs and nothing is in progress; not longer: what is stuck then, the books will say."""
    end = time.monotonic() + seconds
    try:
        eventually("everything runs", supervisor.all_up, seconds)
        eventually("nothing in progress", lambda: not books.unfinished(place.cloud), end - time.monotonic())
        # what died on its way to a cell is taken back when it surely will not arrive any more
        eventually("right sums", lambda: not _unsettled(place), SUMS_SECONDS)
    except AssertionError as late:
        say(str(late))


def one_of_each(supervisor: Supervisor) -> list[Finding]:
    """Of two workers of one name the older one has stopped; the second ones that run all the same are ended."""
    left = supervisor.twins.left()
    supervisor.twins.end()
    return [Finding("double", "", f"two processes of {name} work ({pids} beside it)") for name, pids in left.items()]


def _unsettled(place: Place) -> bool:
    """A sum is wrong, or an image waits for its content."""
    found = records.read(place.cloud)
    return "queued" in chain.from_iterable(found.images.values()) or bool(ledger.leaks(place.cloud, found))


def judge(place: Place, title: str, story: Story) -> Verdict:
    """Read all the books, and compare."""
    found = records.read(place.cloud)
    findings = ledger.judge(found, story.asked, story.prefix) + ledger.leaks(place.cloud, found)
    place.spilled |= bool(findings)
    verdict = Verdict(title, story.asked, findings)
    verdict.culprits = report.culprits(findings, found, story.asked) if findings else ""
    return verdict


def say(text: str) -> None:
    """A line with its time."""
    print(f"  {time.strftime('%T')} {text}", flush=True)
