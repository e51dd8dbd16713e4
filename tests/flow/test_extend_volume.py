"""A volume service says that a volume has grown: no server here has one."""

from __future__ import annotations

from tests.flow import stories


def test_it_ends_with_a_fault_in_the_history_and_the_server_is_as_it_was(api, admin, cloud):
    server_id = cloud.boot(api)
    said = {"name": "volume-extended", "server_uuid": server_id, "tag": "vol-1"}
    answer = admin.send("post", "/os-server-external-events", {"events": [said]})
    assert answer.json()["events"][0]["code"] == 200
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ACTIVE"
    shown = stories.last_action(admin, server_id)
    assert (shown["action"], shown["message"], shown["request_id"]) == (
        "extend_volume", "Error", answer.headers["X-OpenStack-Request-Id"],
    )  # fmt: skip
    [event] = shown["events"]
    assert (event["event"], event["result"]) == ("compute_extend_volume", "Error")
    assert "volume vol-1 is not attached" in event["details"]
    stories.settled(cloud)
