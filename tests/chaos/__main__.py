"""python -m tests.chaos --seeds 1,2,3 --operations 400 | --points: harm a whole cloud, then look at its books."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.chaos import points, run
from tests.chaos.place import opened
from tests.chaos.report import table, total


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", default="1,2,3", help="of the schedules of harm, with commas between")
    parser.add_argument("--operations", type=int, default=400, help="accepted ones, per seed")
    parser.add_argument("--seconds", type=float, default=1200, help="a story's longest time, done or not")
    parser.add_argument("--points", nargs="?", const="all", help="kill -9 at each named point (or at these) instead")
    parser.add_argument("--sqlite", action="store_true", help="SQLite files instead of a PostgreSQL that is killed too")
    return parser.parse_args()


def main() -> int:
    """0 when nothing was lost, double, stuck or leaked."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cloud is ended then too
    options = arguments()
    with opened(sqlite=options.sqlite) as place:
        print(f"the cloud is in {place.cloud.directory}", flush=True)
        if options.points:
            names = None if options.points == "all" else options.points.split(",")
            verdicts = points.all_of_them(place, names)
        else:
            seeds = [int(seed) for seed in options.seeds.split(",")]
            verdicts = [run.seed(place, seed, options.operations, options.seconds) for seed in seeds]
        print(f"\n{table(verdicts)}\n\n{total(verdicts)}", flush=True)
    if not all(verdict.good for verdict in verdicts):
        data = f", its PostgreSQL's in {place.postgres.folder}" if place.postgres else ""
        print(f"\nsomething was spilled; the cloud's folder is kept{data}")
        return 1
    print("\nnothing lost, nothing double, nothing stuck, nothing leaked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
