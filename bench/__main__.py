"""python -m bench [lists|boots|drain|emptying|grace|down|all]: numbers beside their floors.

They go into bench/results and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

from bench import boots, bounds, drain, emptying, grace, place, report
from deploy.local import postgres

WHAT = ("lists", "boots", "drain", "emptying", "grace", "down", "all")


def main() -> int:
    """Measure, print, write. 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=WHAT, default="all")
    parser.add_argument("--servers", type=int, help="to boot, and to move away: 100; down: 10,000")
    parser.add_argument("--cells", type=int, help="down: 10, at least 3")
    parser.add_argument("--requests", type=int, help="down: 200 in each measurement")
    options = parser.parse_args()
    if options.what == "down":
        return _down({name: value for name in ("cells", "servers", "requests") if (value := getattr(options, name))})
    # its settings are others, and a process has one set
    down = subprocess.run([sys.executable, "-m", "bench", "down"]).returncode if options.what == "all" else 0
    options.servers = options.servers or 100
    found = report.latest()
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
    return down


def _down(asked: dict[str, int]) -> int:
    """Bounds are of the whole thing; a smaller one is printed and not written down."""
    found = _measured_down(asked)
    if not asked:
        report.write(report.stamp(report.latest() | {"down": found}))
    print(bounds.page(found))
    kept = bounds.of(found)
    for bound in kept:
        print(bound)
    return 0 if all(bound.holds for bound in kept) else 1


def _measured_down(asked: dict[str, int]) -> dict[str, Any]:
    server = postgres.Server(*postgres.FORGETFUL)
    try:
        server.start()
        server.create("bench_global")
        state = place.prepare(
            STILLWATER_DATABASE_URL=f"{server.url}/bench_global", STILLWATER_CELL_TIMEOUT="2",
        )  # fmt: skip
        from bench import down  # noqa: PLC0415  as above

        return down.run(state, server, down.Size(**asked))
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
