"""A host that says nothing is the host's trouble: its cell answers, and is asked as ever."""

from __future__ import annotations

from cells import circuit_breaker, scatter
from compute.operations import host_request
from tests.flow import stories

ASK = {"os-getConsoleOutput": {}}


def test_a_console_of_a_silent_host_does_not_make_every_server_of_its_cell_unknown(api, cloud, monkeypatch):
    """The cut of a change came first, and the last poll met a cut socket (PostgreSQL only: SQLite has none)."""
    monkeypatch.setattr(scatter, "SECONDS_TO_CHANGE", 0.5)
    monkeypatch.setattr(host_request, "DEADLINE", 0.8)
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, ASK)
    assert answer.status_code == 503
    assert "did not answer within" in stories.message(answer)
    assert circuit_breaker.known_down(cloud.cell_of(server_id).id) == ""
    assert [one["status"] for one in api.get("/servers/detail").json()["servers"]] == ["ACTIVE"]


def test_a_silent_host_is_given_up_before_a_change_of_its_cell_is():
    assert host_request.DEADLINE < scatter.SECONDS_TO_CHANGE
