"""The command: run many seeds, replay one seed, or shrink one seed to a minimal plan that fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.simulation import stage


def main(words: Sequence[str]) -> int:
    """Run the command line. Return 1 when a violation was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-100", help="FIRST-LAST")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--replay", type=int, help="one seed, with its last events")
    parser.add_argument("--shrink", type=int, help="one seed, with as little as fails")
    parser.add_argument("--events", type=int, default=200, help="of a replay, shown")
    parser.add_argument("--calm", action="store_true", help="no harm")
    parser.add_argument("--keep-going", type=int, default=20, help="end after so many seeds that fail")
    parser.add_argument("--verbose", action="store_true", help="a line for every seed")
    asked = parser.parse_args(words)
    stage.up()
    from tests.simulation import many

    if asked.replay is not None:
        return many.replay(asked.replay, asked.events, calm=asked.calm)
    if asked.shrink is not None:
        return many.shrink(asked.shrink, asked.events)
    first, _, last = asked.seeds.partition("-")
    return many.run(
        range(int(first), int(last or first) + 1), asked.jobs, asked.keep_going, calm=asked.calm, verbose=asked.verbose
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
