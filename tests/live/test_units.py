"""What the units say, done: the API on a socket that outlives it."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

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
