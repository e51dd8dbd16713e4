"""What the units say, done: the API on a socket that outlives it, workers that tell how they are."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import closing

import pytest

from deploy.local.ports import any_free
from tests.live.cloud import eventually
from tests.live.gunicorns import ask, listener
from tests.live.units import Unit

pytestmark = pytest.mark.live
SECONDS = 90


def test_the_api_unit_answers_on_its_socket_and_a_restart_refuses_nobody(tmp_path):
    told = {"STILLWATER_STATE": str(tmp_path), "STILLWATER_SECRET_KEY": "x" * 50}
    answers: list[int] = []
    with closing(listener()) as held:
        port = held.getsockname()[1]
        early = threading.Thread(target=lambda: answers.append(ask(port, "/healthz").status))
        early.start()  # nobody is there yet, and the port is open
        first = Unit("stillwater-api.service", tmp_path, held=held, **told)
        try:
            first.hear("READY=1", SECONDS)
            early.join(SECONDS)
            assert ask(port, "/readyz").status == 200
            assert "stillwater_cell_up" in ask(port, "/metrics").text
            assert first.stop() == 0, first.log.read_text()
        finally:
            first.end()
        between = threading.Thread(target=lambda: answers.append(ask(port, "/healthz").status))
        between.start()
        second = Unit("stillwater-api.service", tmp_path, held=held, **told)
        try:
            between.join(SECONDS)
            assert answers == [200, 200]
            assert second.stop() == 0, second.log.read_text()
        finally:
            second.end()


@pytest.fixture
def broker():
    """The URL of a Redis of this test's own."""
    port = any_free()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    eventually("Redis answers", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, SECONDS, 0.1)
    yield f"redis://127.0.0.1:{port}/0"
    redis.kill()
    redis.wait(SECONDS)


@pytest.mark.parametrize("role", ["conductor", "scheduler"])
def test_a_worker_unit_says_how_it_is_from_its_start_to_its_end(tmp_path, broker, role):
    told = {
        "STILLWATER_STATE": str(tmp_path), "STILLWATER_BROKER_URL": broker, "STILLWATER_CELL_BROKER_URL": broker,
        "STILLWATER_CELL_UUID": "1" * 36, "STILLWATER_CELL_DATABASE_URL": f"sqlite:///{tmp_path}/cell.sqlite3",
        "STILLWATER_METRICS_PORT": str(any_free()), "WATCHDOG_USEC": "1000000",
    }  # fmt: skip
    unit = Unit(f"stillwater-{role}@.service", tmp_path, instance="one", **told)
    try:
        assert "STATUS=takes work" in unit.hear("READY=1", SECONDS)
        unit.hear("WATCHDOG=1", SECONDS)
        assert "stillwater_drain_seconds" in ask(int(told["STILLWATER_METRICS_PORT"]), "/metrics").text
        unit.process.terminate()
        unit.hear("STOPPING=1", SECONDS)
        assert unit.process.wait(unit.wait_seconds) == 0, unit.log.read_text()
        assert "supervisor.timeout_too_short" not in unit.log.read_text(), "its unit is patient enough"
    finally:
        unit.end()

    hasty = Unit(
        f"stillwater-{role}@.service", tmp_path, instance="one", STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="500", **told
    )
    try:
        hasty.hear("READY=1", SECONDS)
        assert "Give it more than 500 s" in hasty.log.read_text()
        assert hasty.stop() == 0, hasty.log.read_text()
    finally:
        hasty.end()
