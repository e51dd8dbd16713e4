"""python -m bench [lists|boots|drain|emptying|down|all]: numbers beside their floors.

They go into bench/results and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

from bench import boots, drain, emptying, grace, place, report
from deploy.local import postgres

WHAT = ("lists", "boots", "drain", "emptying", "down", "all")

WHAT = ("lists", "boots", "drain", "emptying", "grace", "all")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=WHAT, default="all")
    parser.add_argument("--servers", type=int, default=100, help="servers to boot, and to move away")
    options = parser.parse_args()
    if options.what == "all":  # its settings are others, and a process has one set
        subprocess.run([sys.executable, "-m", "bench", "down"], check=True)
    found = report.latest()
    if options.what == "down":
        found["down"] = _down()
    if options.what in ("boots", "all"):
        found["boots"] = boots.run(options.servers)
    if options.what in ("drain", "all"):
        found["drain"] = drain.run()
    if options.what in ("emptying", "all"):
        found["emptying"] = emptying.run(options.servers)
    if options.what in ("grace", "all"):
        found["grace"] = grace.run()
    if options.what in ("lists", "all"):
        state = place.prepare()
        from bench import lists  # noqa: PLC0415  its models need the settings that were just made

        found["lists"] = lists.run(state)
    found = report.stamp(found)
    report.write(found)
    print(report.page(found))


def _down() -> dict[str, Any]:
    server = postgres.Server(*postgres.FORGETFUL)
    try:
        server.start()
        server.create("bench_global")
        state = place.prepare(
            STILLWATER_DATABASE_URL=f"{server.url}/bench_global", STILLWATER_CELL_TIMEOUT="2",
        )  # fmt: skip
        from bench import down  # noqa: PLC0415  as above

        return down.run(state, server)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    main()
