"""python -m bench [lists|requests|boots|drain|emptying|grace|down|events|all]: measurements beside their floors.

The results go into bench/results and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import boots, bounds, drain, emptying, grace, place, report
from tests.servers import postgres

WHAT = ("lists", "requests", "boots", "drain", "emptying", "grace", "down", "events", "all")


def main() -> int:
    """Measure, print and write. Return 1 when a bound is broken."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=WHAT, default="all")
    parser.add_argument("--servers", type=int, help="to boot, and to move away: 100; down: 10,000")
    parser.add_argument("--cells", type=int, help="down: 10, at least 3")
    parser.add_argument("--requests", type=int, help="down: 200 in each measurement")
    options = parser.parse_args()
    if options.what == "down":
        return _down({name: value for name in ("cells", "servers", "requests") if (value := getattr(options, name))})
    if options.what == "events":
        return _events()
    # they need other settings, and a process has only one set
    apart = ("down", "events", "lists", "requests") if options.what == "all" else ()
    failed = max((subprocess.run([sys.executable, "-m", "bench", one]).returncode for one in apart), default=0)
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
    if options.what in ("lists", "requests"):
        state = place.prepare()
        from bench import lists, requests  # noqa: PLC0415  their models need the settings that were just made

        found[options.what] = (lists if options.what == "lists" else requests).run(state)
    found = report.stamp(found)
    report.write(found)
    print(report.page(found))
    return failed


def _down(asked: dict[str, int]) -> int:
    """Return 1 when a bound is broken. Bounds are made for the default size; other sizes are printed, not written."""
    def measure(state: Path, server: postgres.Server) -> dict[str, Any]:
        from bench import down  # noqa: PLC0415  its models need the settings that were just made

        return down.run(state, server, down.Size(**asked))

    found = _on_postgres(measure)
    if not asked:
        report.write(report.stamp(report.latest() | {"down": found}))
    print(bounds.page(found))
    kept = bounds.of(found)
    for bound in kept:
        print(bound)
    return 0 if all(bound.holds for bound in kept) else 1


def _events() -> int:
    """Return 1 when a request took two seconds or longer."""

    def measure(state: Path, server: postgres.Server) -> dict[str, Any]:
        from bench import events  # noqa: PLC0415  as above

        return events.run(state, server)

    found = _on_postgres(measure)
    report.write(report.stamp(report.latest() | {"events": found}))
    print(report.events(found))
    slowest = max(figure for row in found["measured"].values() for figure in (row["max_ms"], row.get("first_ms", 0)))
    return 0 if slowest < 2000 else 1


def _on_postgres(measure: Callable[[Path, postgres.Server], dict[str, Any]]) -> dict[str, Any]:
    # autovacuum would disturb some measurements and not others
    server = postgres.Server(*postgres.FORGETFUL, "autovacuum=off")
    try:
        server.start()
        server.create("bench_global")
        state = place.prepare(
            STILLWATER_DATABASE_URL=f"{server.url}/bench_global", STILLWATER_CELL_TIMEOUT="2",
        )  # fmt: skip
        return measure(state, server)
    finally:
        server.stop()
        server.remove()


if __name__ == "__main__":
    sys.exit(main())
