"""pytest -p tests.live.no_skips: a skipped test is a failed set-up, so the run fails and says which."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In the process that reports; xdist's workers report nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if not skipped or hasattr(session.config, "workerinput"):
        return
    names = ", ".join(sorted({report.nodeid for report in skipped})[:5])
    reporter.write_line(f"{len(skipped)} skipped, but every test has to run: {names}", red=True)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
