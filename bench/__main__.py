"""python -m bench [lists|boots|drain|emptying|all]: numbers beside their floors.

They go into bench/results and docs/benchmarks.md.
"""

from __future__ import annotations

import argparse

from bench import boots, drain, emptying, place, report


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("lists", "boots", "drain", "emptying", "all"), default="all")
    parser.add_argument("--servers", type=int, default=100, help="servers to boot, and to move away")
    options = parser.parse_args()
    found = report.latest()
    if options.what in ("boots", "all"):
        found["boots"] = boots.run(options.servers)
    if options.what in ("drain", "all"):
        found["drain"] = drain.run()
    if options.what in ("emptying", "all"):
        found["emptying"] = emptying.run(options.servers)
    if options.what in ("lists", "all"):
        state = place.prepare()
        from bench import lists  # noqa: PLC0415  its models need the settings that were just made

        found["lists"] = lists.run(state)
    found = report.stamp(found)
    report.write(found)
    print(report.page(found))


if __name__ == "__main__":
    main()
