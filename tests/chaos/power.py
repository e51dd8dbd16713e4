"""python -m tests.chaos.power --rounds 200 --seed 1: power-updates among everything else that comes to a server.

Many servers of one small cloud at once, each in rounds of its own: power button, events, syncs, stops, starts, reboots,
deletes, drains and kills of the host's worker, in an order that the seed decides. After each round: the record is true,
nothing is stuck, the newest event has won, and whatever was accepted has ended with words.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos import power_books
from tests.chaos.place import Place, opened
from tests.chaos.power_story import Switcher
from tests.chaos.run import say
from tests.chaos.story import Story
from tests.chaos.supervisor import Supervisor
from tests.live.cloud import eventually

SERVERS = 10  # at once
REST_SECONDS = 90.0


@dataclass
class Tally:
    """What came of all rounds."""

    rounds: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)  # how they ended
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, switcher: Switcher, wrong: list[str]) -> None:
        """One round."""
        with self.lock:
            self.rounds += 1
            self.asked.update(one.verb for one in switcher.round if one.accepted)
            self.events += power_books.how_ended(switcher) if switcher.server_id else Counter()
            if wrong:
                self.wrong.append("\n  ".join([f"server {switcher.server_id}", *wrong, *switcher.log]))


def play(place: Place, rounds: int, seed: int, servers: int = SERVERS) -> tuple[Tally, int]:
    """All rounds; what came of them, and how many processes were ended."""
    story, supervisor, tally = Story(place, f"power{seed}x{int(time.time())}", 0), Supervisor(place, say), Tally()
    numbers = iter(range(rounds))
    with supervisor.watching():
        switchers = [Switcher(story, number, supervisor) for number in range(min(servers, rounds))]
        threads = [threading.Thread(target=_live, args=(one, seed, numbers, tally)) for one in switchers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually("everything runs", supervisor.all_up, REST_SECONDS)
    return tally, sum(supervisor.deaths.values())


def _live(switcher: Switcher, seed: int, numbers: Iterator[int], tally: Tally) -> None:
    """Rounds, as long as there are some; then its server goes."""
    for number in numbers:
        wrong = []
        try:
            switcher.begin(f"power {seed} {number}")
            switcher.tell()
            eventually("the server is idle", switcher.is_idle, REST_SECONDS, 0.1)
            wrong = power_books.judge(switcher)
        except Exception as error:  # whatever it is, the others go on
            wrong = [repr(error)]
        tally.add(switcher, wrong)
        if wrong or power_books.is_deleted(switcher):
            switcher.forget()  # one that is wrong is left for whoever looks
    if switcher.server_id:
        switcher.ask("delete", switcher.server_id)
        switcher.forget()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.power", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of one server each")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--servers", type=int, default=SERVERS, help="that have a round at once")
    parser.add_argument("--sqlite", action="store_true", help="SQLite files instead of PostgreSQL")
    return parser.parse_args()


def main() -> int:
    """0 when nothing was lost or stuck, and every record is true."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cloud is ended then too
    options = arguments()
    with opened(sqlite=options.sqlite) as place:
        print(f"the cloud is in {place.cloud.directory}", flush=True)
        began = time.monotonic()
        tally, deaths = play(place, options.rounds, options.seed, options.servers)
        place.spilled = bool(tally.wrong)
        say(f"seed {options.seed}: {tally.rounds} rounds in {time.monotonic() - began:.0f} s, {deaths} processes ended")
        say(f"accepted: {_counted(tally.asked)}")
        say(f"events: {_counted(tally.events)}")
        print("\n\n".join(itertools.chain([""], tally.wrong)), flush=True)
    print(f"{len(tally.wrong)} rounds went wrong" if tally.wrong else "every record is true")
    return 1 if tally.wrong else 0


def _counted(many: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(many.items()))


if __name__ == "__main__":
    sys.exit(main())
