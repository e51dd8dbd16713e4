"""A server's boot, from the request to the running guest."""

from __future__ import annotations


def test_a_boot_reaches_a_host_and_ends_active(api, cloud):
    answer = api.send("post", "/servers", cloud.body("web"))
    assert answer.status_code == 202, answer.content
    server_id = answer.json()["server"]["id"]
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "BUILD"

    cloud.work()

    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("ACTIVE", 1)
    assert cloud.host_of(server_id).driver.guests().keys() == {server_id}
