"""python -m tests.upgrade [--old v0.1.0]: under load, a whole cloud of an older version becomes this one."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import run
from tests.chaos.place import opened
from tests.chaos.report import Verdict, table, total
from tests.chaos.run import say
from tests.chaos.story import Asked, Story
from tests.chaos.supervisor import Supervisor
from tests.live.cloud import eventually
from tests.live.gunicorns import ANSWER_SECONDS
from tests.upgrade import operator, trees
from tests.upgrade.blinker import Blinker
from tests.upgrade.rollout import Rollout, begun

CLIENTS = 6
LONGEST = 1800.0  # seconds of one upgrade
BETWEEN = 8  # operations that clients get accepted while two versions run, after each process


@dataclass(frozen=True, slots=True)
class Plan:
    """How the older version is replaced: by the commands of the page, or process by process with a signal."""

    title: str
    sig: signal.Signals | None = None
    turn: int = 1  # -1: in the opposite order


PLANS = (
    Plan("by the commands of docs/upgrade.md"),
    Plan("in the opposite order", signal.SIGTERM, -1),
    Plan("in the documented order, by kill -9", signal.SIGKILL),
)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("--old", default="v0.1.0", help="the older version: a tag or commit of this clone")
    parser.add_argument("--sqlite", action="store_true", help="SQLite files instead of PostgreSQL")
    return parser.parse_args()


def main() -> int:
    """0 when no request failed, and nothing was lost, double, stuck or leaked."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cloud is ended then too
    options, folder = arguments(), Path(tempfile.mkdtemp(prefix="sw-trees-", dir="/tmp"))
    old = trees.older(folder / "older", options.old)
    (folder / "newer").mkdir()
    new = trees.newer(folder / "newer")
    with opened(sqlite=options.sqlite, root=old) as place:
        print(f"the cloud is in {place.cloud.directory}; {options.old} becomes this version", flush=True)
        supervisor = Supervisor(place, say)
        with begun(place, supervisor, old) as rollout, supervisor.watching():
            verdicts = [_upgrade(rollout, plan, old, new) for plan in PLANS]
    unsure = [one for verdict in verdicts for one in verdict.asked if one.accepted is None]
    failed = Counter(one.status for one in unsure if not _was_cut(one, rollout.killed_at))
    print(f"\n{table(verdicts)}\n\n{total(verdicts)}; failed requests {failed.total()} {dict(failed) or ''}")
    print(f"requests that an API had begun when kill -9 ended it: {len(unsure) - failed.total()}")
    shutil.rmtree(folder)
    return 0 if all(verdict.good for verdict in verdicts) and not failed else 1


def _was_cut(one: Asked, killed_at: Sequence[float]) -> bool:
    """Whether an API was killed while it worked on a request: no order of an upgrade saves that one."""
    return one.status == 0 and any(0 <= at - one.at < ANSWER_SECONDS for at in killed_at)


def _upgrade(rollout: Rollout, plan: Plan, old: Path, new: Path) -> Verdict:
    """Go back to the older version at rest, then upgrade under load."""
    place, began = rollout.place, time.monotonic()
    say(f"-- {plan.title}")
    processes = operator.order(place.cloud.state)
    rollout.to(old, processes[::-1])
    prefix = f"u{int(time.time())}"
    story, blinker = Story(place, prefix, 10**9), Blinker(place, prefix)
    deaths = sum(rollout.supervisor.deaths.values())
    clients = threading.Thread(target=story.tell, args=(1, CLIENTS, LONGEST), daemon=True)

    def two_versions_work() -> None:
        before = story.count()
        eventually("more operations are accepted", lambda: story.count() >= before + BETWEEN)

    with blinker.at_work():
        clients.start()
        rollout.work = two_versions_work
        try:
            if plan.sig is None:
                operator.Operator(rollout, new).upgrade()
            else:
                rollout.to(new, processes[:: plan.turn], plan.sig)
        finally:
            rollout.work = lambda: None
            story.wanted = 0
            clients.join(60)
    run.rest(place, rollout.supervisor)
    verdict = run.judge(place, plan.title, story)
    verdict.findings += blinker.findings()
    verdict.asked = [*story.asked, *blinker.story.asked]
    verdict.seconds, verdict.deaths = time.monotonic() - began, sum(rollout.supervisor.deaths.values()) - deaths
    blinked = Counter(one.status for one in blinker.asked)
    say(f"{story.count()} operations; blink answered {dict(blinked)}; {Counter(one.kind for one in verdict.findings)}")
    for finding in verdict.findings:
        say(f"{finding.kind.upper()} {finding.server}: {finding.words}")
    print(verdict.culprits, flush=True)
    place.spilled |= not verdict.good
    return verdict


if __name__ == "__main__":
    sys.exit(main())
