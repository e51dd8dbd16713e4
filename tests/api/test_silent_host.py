"""A host that says nothing is the host's trouble: its cell answers, and is asked as ever."""

from __future__ import annotations

from cells import health, scatter
from compute import hostcall
from tests.flow import stories

ASK = {"os-getConsoleOutput": {}}


def test_a_console_of_a_silent_host_does_not_make_every_server_of_its_cell_unknown(api, cloud, monkeypatch):
    """The cut of a change came first, and the last poll met a cut socket (PostgreSQL only: SQLite has none)."""
    monkeypatch.setattr(scatter, "SECONDS_TO_CHANGE", 0.5)
    monkeypatch.setattr(hostcall, "DEADLINE", 0.8)
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, ASK)
    assert answer.status_code == 503
    assert "did not answer within" in stories.message(answer)
    assert health.known_down(cloud.cell_of(server_id).id) == ""
    assert [one["status"] for one in api.get("/servers/detail").json()["servers"]] == ["ACTIVE"]


def test_a_silent_host_is_given_up_before_a_change_of_its_cell_is():
    assert hostcall.DEADLINE < scatter.SECONDS_TO_CHANGE
