"""What stories of several steps on one host have in common: each killed, each preempted, each asked twice."""

from __future__ import annotations

from typing import Any

from cells.context import target_cell
from compute.models import Service
from tests.byhand import Cloud
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message

MOMENTS = ["before", "inside", "after the work"]
WAYS = {"active": (), "stopped": ("stop",), "paused": ("pause",), "suspended": ("suspend",)}


def booted(api: Any, cloud: Cloud, was: str = "active") -> str:
    """A server of the user's in cell1, where there are two hosts: host1 and host3."""
    if "host3" not in cloud.hosts:
        cloud.add_host("host3", "cell1")
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, WAYS[was])
    return server_id


def done(api: Any, cloud: Cloud, server_id: str, body: dict[str, Any]) -> None:
    """Ask for something and do it all."""
    answer = act(api, server_id, body)
    assert answer.status_code in (200, 202), answer.content
    cloud.work()


def power(cloud: Cloud, server_id: str) -> str:
    """What the guest is doing, on the host it is on."""
    return cloud.host_of(server_id).driver.power_state(server_id).name


def is_busy(api: Any, server_id: str, body: dict[str, Any], task: str) -> None:
    """A second action is a conflict, the same one with Nova's text."""
    again = act(api, server_id, body)
    text = f"Cannot '{next(iter(body))}' instance {server_id} while it is in task_state {task}"
    assert (again.status_code, message(again)) == (409, text)
    assert act(api, server_id, {"createImage": {"name": "x"}}).status_code == 409


def is_deleted(cloud: Cloud, server_id: str) -> None:
    """Nothing of it is anywhere."""
    assert cloud.row(server_id).deleted
    assert not [name for name, host in cloud.hosts.items() if server_id in host.driver.guests()]
    stories.settled(cloud)


def preempted(api: Any, cloud: Cloud, server_id: str, step: Any, when: str) -> None:
    """The server is deleted when its step has come so far; then whoever ran that comes back."""
    if when != "before":
        step = two_hosts.claim(cloud, step)
        if when == "after the work":
            two_hosts.work(cloud, step)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    two_hosts.restart(cloud, step)
    cloud.work()
    is_deleted(cloud, server_id)


def tried_out(cloud: Cloud) -> None:
    """Every try of what keeps failing."""
    for _ in range(10):
        cloud.work()
        stories.later(cloud)
    cloud.work()
