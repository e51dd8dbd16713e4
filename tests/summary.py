"""The last lines of a run: how many tests of each kind ran, what sampling left out, and the ten slowest.

A kind is a folder of `tests/`. With pytest-xdist only its workers collect tests, so each worker sends what its sampling
left out with the end of its session; all workers leave out the same tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

from tests import sampling

SLOWEST = 10
LEFT_OUT = "left_out_by_sampling"  # in the `workeroutput` of pytest-xdist: {kind: count}


class Summary:
    """Counts in the process that reports; in a worker of pytest-xdist it only sends what was left out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(trylast=True)  # after -m and -k
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what sampling leaves out, and count it."""
        items[:], left_out = sampling.split(config, items)
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        self._left_out.update(_kind(item.nodeid) for item in left_out)

    def pytest_sessionfinish(self) -> None:
        """Send the counts of a worker to the process that reports."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[LEFT_OUT] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of a worker that ended; a worker that crashed sent none."""
        self._left_out = Counter(getattr(node, "workeroutput", {}).get(LEFT_OUT)) or self._left_out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a set-up, a call or a tear-down."""
        self._seconds[report.nodeid] += report.duration
        self._ran[_kind(report.nodeid)] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the lines. The seconds of a test include its set-up, which may start what later tests share."""
        took: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self._seconds.items():
            took[_kind(name)] += seconds
        for kind, count in sorted(self._ran.items()):
            left_out = self._left_out[kind]
            sampled = f", sampled: {left_out} left out" if left_out else ""
            terminalreporter.write_line(f"{count:5} {kind} ({took[kind]:.0f} s{sampled})")
        if self._left_out:
            terminalreporter.write_line(f"the sample is that of --turn {sampling.turn(self._config)}")
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:SLOWEST]
        terminalreporter.write_line(f"the {len(slowest)} slowest:")
        for name, seconds in slowest:
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


def _kind(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return "/".join(file.split("/")[:2]) if file.count("/") > 1 else "tests"
