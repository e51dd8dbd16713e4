"""Unlocking a server."""

from __future__ import annotations

from tests.flow import stories

LOCK, UNLOCK = {"lock": None}, {"unlock": None}


def _locked(api, server_id):
    return api.get(f"/servers/{server_id}").json()["server"]["locked"]


def test_an_unlocked_server_can_be_changed_again(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"lock": {"locked_reason": "audit"}})
    assert stories.act(api, server_id, UNLOCK).status_code == 202
    assert cloud.row(server_id).locked_reason is None
    stories.lead(api, cloud, server_id, ("pause",))
    assert [action.action for action in cloud.history(server_id)] == ["create", "lock", "unlock", "pause"]


def test_an_admins_lock_only_an_admin_takes_away(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(admin, server_id, LOCK)
    answer = stories.act(api, server_id, UNLOCK)
    assert answer.status_code == 403
    assert "unlock_override" in stories.message(answer)
    assert _locked(api, server_id)
    assert stories.act(admin, server_id, UNLOCK).status_code == 202
    assert not _locked(api, server_id)


def test_a_server_that_is_not_locked_can_be_unlocked(api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, UNLOCK).status_code == 202
    assert not _locked(api, server_id)


def test_readers_cannot_unlock_and_strangers_see_nothing(api, reader, stranger, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, LOCK)
    assert stories.act(reader, server_id, UNLOCK).status_code == 403
    assert stories.act(stranger, server_id, UNLOCK).status_code == 404
    assert _locked(api, server_id)
