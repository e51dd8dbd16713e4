"""Guests that go off are counted by the process of their host, each once, as it shows them to whoever scrapes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from tasks import shutdown_recorder, worker
from tests.byhand import Cloud, Host
from tests.flow import stories
from tests.flow.stories import act

WHY = ("deadline", "cut_short", "paused", "hard")


@pytest.fixture
def host(cloud: Cloud) -> Iterator[Host]:
    """One with all that its process has: watcher and recorder."""
    host = cloud.hosts["host1"]
    shutdown_recorder.start(worker.Worker("host", host.name, host.cell.id, host.driver))
    yield host
    shutdown_recorder.stop()


def counted() -> dict[str, float]:
    """Forced by why, and how many are in the histogram by how."""
    forced = {why: REGISTRY.get_sample_value("stillwater_guests_forced_off_total", {"cause": why}) for why in WHY}
    seconds = {how: REGISTRY.get_sample_value("stillwater_guest_shutdown_seconds_count", {"how": how})
               for how in ("guest", "forced")}  # fmt: skip
    return {name: value or 0.0 for name, value in (forced | seconds).items()}


def grown(before: dict[str, float]) -> dict[str, float]:
    """What has been counted since."""
    return {name: now - before[name] for name, now in counted().items() if now != before[name]}


def booted(api, cloud: Cloud) -> str:
    """A server on the host."""
    for _ in range(8):
        server_id = cloud.boot(api)
        if cloud.row(server_id).host == "host1":
            return server_id
    raise AssertionError("none came to host1")


@pytest.mark.parametrize(
    ("guest", "body", "seconds", "expected"),
    [
        ({"delay": 0.2}, {"os-stop": None}, 60, {"guest": 1}),
        ({"ignore": True}, {"os-stop": None}, 1, {"deadline": 1, "forced": 1}),
        ({"ignore": True}, {"os-stop": {"shutdown_type": "HARD"}}, 60, {"hard": 1}),
        ({"ignore": True}, {"os-stop": None}, 0, {"hard": 1}),
        ({"ignore": True}, {"reboot": {"type": "SOFT"}}, 1, {"deadline": 1, "forced": 1}),
    ],
)
def test_one_guest_is_counted_once(admin, cloud, host, settings, guest, body, seconds, expected):
    settings.SHUTDOWN_TIMEOUT = seconds
    server_id, before = booted(admin, cloud), counted()
    host.driver.faults.shutdown(**guest)
    act(admin, server_id, body)
    cloud.work_until(lambda: grown(before) == expected and over(cloud, server_id))
    stories.lead(admin, cloud, server_id, ())
    assert grown(before) == expected


def test_three_who_wait_for_one_guest_are_one(admin, cloud, host, settings):
    settings.SHUTDOWN_TIMEOUT = 600
    server_id, before = booted(admin, cloud), counted()
    host.driver.faults.shutdown(ignore=True)
    act(admin, server_id, {"os-stop": None})
    cloud.work_until(host.waiting)
    admin.delete(f"/servers/{server_id}?shutdown_type=SOFT")
    cloud.work_until(lambda: len(host.waiting()) == 2)
    admin.delete(f"/servers/{server_id}?shutdown_type=HARD")
    cloud.work_until(lambda: over(cloud, server_id) and grown(before))
    assert grown(before) == {"cut_short": 1, "forced": 1}


def test_one_that_could_not_hear_is_counted_as_such(admin, cloud, host):
    server_id, before = booted(admin, cloud), counted()
    act(admin, server_id, {"pause": None})
    cloud.work()
    admin.delete(f"/servers/{server_id}?shutdown_type=SOFT")
    cloud.work_until(lambda: over(cloud, server_id) and grown(before))
    assert grown(before) == {"paused": 1, "forced": 1}


def over(cloud: Cloud, server_id: str) -> bool:
    """Whether nothing goes on with it."""
    return all(action.finished_at for action in cloud.history(server_id))
