"""The stock client gives servers a grace period, stops and deletes them, and loses its patience."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import ClientFailed, Cloud, eventually
from tests.machine import fair

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
OWN = "termination_grace_period_seconds"
NOBODY_HEARS = "client-grace-deaf"
BOOT = ("server", "create", "--flavor", "m1.nano", "--image", NOBODY_HEARS, "--nic", "none", "--wait")
SENTENCE = f"Invalid input for field/attribute {OWN}. Value: ten. It is a whole number from 0 to 86400."


@pytest.fixture(scope="module")
def deaf(fake_cloud: Cloud) -> Iterator[Cloud]:
    """A cloud with an image whose guests hear no signal."""
    admin = fake_cloud.sdk(admin=True).image
    kind = {"disk_format": "raw", "container_format": "bare", "visibility": "public", "validate_checksum": False}
    image = admin.create_image(NOBODY_HEARS, data=b"\0" * 512, fake_shutdown_ignore="1", **kind)
    yield fake_cloud
    admin.delete_image(image.id)


def test_a_grace_period_is_a_property_of_a_server_to_the_stock_client(deaf):
    with pytest.raises(ClientFailed, match=re.escape(SENTENCE)):
        deaf.openstack(*BOOT, "--property", f"{OWN}=ten", "client-grace-never")
    uuid = deaf.openstack(*BOOT, "--property", f"{OWN}=300", "client-grace-own")["id"]
    assert properties(deaf, uuid) == {OWN: "300"}
    deaf.do("server", "set", "--property", f"{OWN}=600", "--property", "shutdown_priority=-1", uuid)
    assert properties(deaf, uuid) == {OWN: "600", "shutdown_priority": "-1"}
    with pytest.raises(ClientFailed, match=re.escape(SENTENCE)):
        deaf.do("server", "set", "--property", f"{OWN}=ten", uuid)
    deaf.do("server", "unset", "--property", OWN, uuid)
    assert properties(deaf, uuid) == {"shutdown_priority": "-1"}
    compute = deaf.sdk().compute
    answer = compute.put(f"/servers/{uuid}", json={"server": {OWN: 900, "shutdown_priority": None}})
    assert (answer.status_code, answer.json()["server"]["metadata"]) == (200, {OWN: "900"})
    assert compute.get_server(uuid).metadata == {OWN: "900"}
    deaf.do("server", "delete", uuid)
    assert compute.get_server(uuid).task_state == "deleting"  # it has a grace period of its own
    eventually("its guest is asked", lambda: waiting(deaf, uuid) == ["terminate"])
    deaf.do("server", "delete", uuid)
    assert waiting(deaf, uuid) == ["terminate"]
    deaf.do("server", "delete", "--force", uuid)
    assert gone_in(compute, uuid) < fair(5)


def test_who_loses_patience_with_a_stop_ends_it(deaf):
    uuid = deaf.openstack(*BOOT, "client-grace-stop")["id"]
    compute = deaf.sdk().compute
    for hurry, task, end in (
        (lambda: act(compute, uuid, {"os-stop": {"shutdown_type": "hard"}}), "stop", "SHUTOFF"),
        (lambda: deaf.do("server", "reboot", "--hard", uuid), "reboot", "ACTIVE"),
    ):
        deaf.do("server", "stop", uuid)
        eventually("its guest is asked", lambda: waiting(deaf, uuid) == ["power_off"])
        began = time.monotonic()
        hurry()
        eventually(end, lambda end=end: compute.get_server(uuid).status == end and not waiting(deaf, uuid))
        assert time.monotonic() - began < 20  # of 60; the client itself takes some
        eventually("both are told", lambda: all(row["outcome"] for row in log(deaf, uuid)))
        newest, stop = log(deaf, uuid)[:2]
        assert (newest["action"], stop["action"]) == (task, "stop")
        assert re.match(r"preempted: forced off after \d+ s: cut short by a request", stop["outcome"])
        if end == "SHUTOFF":
            deaf.do("server", "start", uuid)
            compute.wait_for_server(compute.get_server(uuid), wait=60)
    answer = compute.delete(f"/servers/{uuid}?shutdown_type=GENTLE")
    assert (answer.status_code, "It is HARD or SOFT." in answer.json()["badRequest"]["message"]) == (400, True)
    assert compute.delete(f"/servers/{uuid}?shutdown_type=SOFT").status_code == 204
    eventually("its guest is asked", lambda: waiting(deaf, uuid) == ["terminate"])
    assert compute.delete(f"/servers/{uuid}?shutdown_type=HARD").status_code == 204
    assert gone_in(compute, uuid) < fair(5)
    books.settled(deaf)
    books.check(deaf)


def act(compute: Any, uuid: str, body: dict[str, Any]) -> None:
    """A server action, as it is on the wire."""
    answer = compute.post(f"/servers/{uuid}/action", json=body)
    assert answer.status_code == 202, answer.text


def properties(cloud: Cloud, uuid: str) -> dict[str, str]:
    """As the client shows them."""
    return cloud.openstack("server", "show", uuid)["properties"]


def waiting(cloud: Cloud, uuid: str) -> list[str]:
    """Steps that wait for its guest."""
    found = f"SELECT name FROM compute_step WHERE server_id = '{uuid}' AND state = 'waiting' ORDER BY id"
    return [str(name) for cell in books.CELLS for (name,) in cloud.ask(cell, found)]


def log(cloud: Cloud, uuid: str) -> list[dict[str, str]]:
    """Its actions, the newest first."""
    found = f"SELECT action, outcome FROM compute_instanceaction WHERE server_id = '{uuid}' ORDER BY id DESC"
    rows = [row for cell in books.CELLS for row in cloud.ask(cell, found)]
    return [{"action": str(action), "outcome": str(outcome)} for action, outcome in rows]


def gone_in(compute: Any, uuid: str) -> float:
    """Seconds until nobody finds it any more."""
    began = time.monotonic()
    eventually("it is gone", lambda: compute.get(f"/servers/{uuid}").status_code == 404, pause=0.1)
    return time.monotonic() - began
