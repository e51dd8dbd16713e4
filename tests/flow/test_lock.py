"""Locking a server."""

from __future__ import annotations

import pytest

from tests.flow import stories


def _shown(api, server_id):
    server = api.get(f"/servers/{server_id}").json()["server"]
    return server["locked"], server["locked_reason"]


def test_a_lock_is_there_at_once_and_keeps_its_reason(api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, {"lock": {"locked_reason": "audit"}}).status_code == 202
    assert _shown(api, server_id) == (True, "audit")
    recorded = stories.last_action(api, server_id)
    assert (recorded["action"], recorded["message"], recorded["events"]) == ("lock", None, [])
    stories.settled(cloud)


def test_before_the_reason_was_invented_the_value_means_nothing(api, cloud):
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, {"lock": {"locked_reason": "audit"}}, version="2.72")
    assert answer.status_code == 202
    assert _shown(api, server_id) == (True, None)


@pytest.mark.parametrize("value", [{"locked_reason": ""}, {"locked_reason": "x" * 256}, {"why": "x"}, "now"])
def test_a_reason_nobody_can_read_is_a_bad_request(value, api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, {"lock": value}).status_code == 400
    assert _shown(api, server_id) == (False, None)


def test_a_lock_holds_against_delete_but_not_against_an_admin(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"lock": None})
    answer = api.delete(f"/servers/{server_id}")
    assert (answer.status_code, stories.message(answer)) == (409, f"Instance {server_id} is locked")
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    stories.settled(cloud)


def test_a_busy_server_can_be_locked_and_its_task_goes_on(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"pause": None})
    assert stories.act(api, server_id, {"lock": None}).status_code == 202
    cloud.work()
    assert stories.states(cloud, server_id) == ("paused", None)
    assert _shown(api, server_id) == (True, None)


def test_readers_cannot_lock_and_strangers_see_nothing(api, reader, stranger, cloud):
    server_id = cloud.boot(api)
    assert stories.act(reader, server_id, {"lock": None}).status_code == 403
    assert stories.act(stranger, server_id, {"lock": None}).status_code == 404
    assert _shown(api, server_id) == (False, None)
