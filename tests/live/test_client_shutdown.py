"""The stock client looks at a guest that is on its way off: what is new in the answers is nothing it stumbles over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NEWEST = ("--os-compute-api-version", "2.96")
GRACE = 240  # seconds: nobody waits for its end


@pytest.fixture(scope="module")
def stubborn(fake_cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose stop waits for a guest that never obeys."""
    disk = tmp_path_factory.mktemp("stubborn") / "disk.raw"
    disk.write_bytes(b"\0" * (1 << 20))
    kind = ("--disk-format", "raw", "--container-format", "bare", "--property", "fake_shutdown_ignore=1")
    fake_cloud.do("image", "create", *kind, "--file", str(disk), "seen-stubborn")
    own = ("--property", f"termination_grace_period_seconds={GRACE}")
    words = ("--image", "seen-stubborn", "--flavor", "m1.nano", "--nic", "none", "--wait", "seen-stubborn")
    uuid = fake_cloud.openstack("server", "create", *own, *words)["id"]
    fake_cloud.do("server", "stop", uuid)
    yield uuid
    fake_cloud.do(*NEWEST, "server", "delete", "--force", "--wait", uuid, admin=True)
    fake_cloud.do("image", "delete", "seen-stubborn")


def test_the_stock_client_shows_how_far_it_is_and_who_waits(fake_cloud, stubborn):
    def shown() -> dict:
        return fake_cloud.openstack(*NEWEST, "server", "show", stubborn)

    def events() -> list:
        newest = fake_cloud.openstack(*NEWEST, "server", "event", "list", stubborn)[0]
        assert newest["Action"] == "stop"
        words = ("server", "event", "show", stubborn, newest["Request ID"])
        return fake_cloud.openstack(*NEWEST, *words, admin=True)["events"]

    eventually("the guest was signalled", lambda: "forced off at" in str(events()[0].get("details")), 60)
    [event] = events()
    assert (event["event"], event["result"], event["finish_time"]) == ("compute_stop_instance", None, None)
    assert event["details"].split("; ")[0].endswith("(acpi)")
    server = shown()
    assert (server["status"], server["OS-EXT-STS:task_state"]) == ("ACTIVE", "powering-off")
    later = eventually("progress grows", lambda: (now := shown())["progress"] > server["progress"] and now, 60)
    assert 0 < later["progress"] <= 100
    assert later["properties"] == {"termination_grace_period_seconds": str(GRACE)}
    assert any(row["ID"] == stubborn for row in fake_cloud.openstack(*NEWEST, "server", "list", "--long"))


def test_the_stock_library_reads_it_as_well(fake_cloud, stubborn):
    with fake_cloud.sdk() as connection:
        server = eventually("its stop waits", lambda: _waits(connection, stubborn), 60)
        assert server.task_state == "powering-off"
        assert 0 <= server.progress <= 100
        [newest, _] = connection.compute.server_actions(stubborn)
        found = connection.compute.get_server_action(newest.request_id, stubborn)
        assert found.events[0].result is None


def _waits(connection, server_id):
    server = connection.compute.get_server(server_id)
    raw = connection.compute.get(f"/servers/{server_id}", microversion="2.96").json()["server"]
    return server if raw.get("shutdown", {}).get("signals") else None
