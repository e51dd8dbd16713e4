"""What stories of power states have in common: a host that hears of a change, or looks by the clock."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from cells.context import target_cell
from compute.models import InstanceAction
from compute.power import sync as power_sync
from compute.virt.base import GuestEvent, PowerState
from tests.byhand import Cloud


def notice(cloud: Cloud, server_id: str, power_state: PowerState = PowerState.SHUTDOWN) -> None:
    """The host hears of a change, late or not."""
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        power_sync.record_event(host.name, host.driver, GuestEvent(server_id, power_state, "shutdown"))


def sync(cloud: Cloud, server_id: str, **options: Any) -> int:
    """The host's periodic look; how many differed."""
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        return power_sync.sync(host.name, host.driver, **options)


def do(cloud: Cloud, server_id: str, what: str) -> None:
    """Somebody does something to the guest behind our back: on, off, crash, pause, unpause, suspend."""
    driver, guest = cloud.host_of(server_id).driver, cloud.row(server_id).as_guest()
    verbs = {"on": lambda: driver.power_on(guest), "off": lambda: driver.power_off_from_inside(server_id)}
    verbs["resume"] = lambda: driver.resume(guest)
    verbs.get(what, lambda: getattr(driver, what)(server_id))()


def guest(cloud: Cloud, server_id: str) -> PowerState:
    """What the hypervisor says."""
    return cloud.host_of(server_id).driver.power_state(server_id)


def tasks(cloud: Cloud, server_id: str) -> list[str]:
    """The server's history, in words."""
    return [action.action for action in cloud.history(server_id)]


def speaks(cloud: Cloud, server_id: str, **columns: Any) -> None:
    """Metadata, image, flavor of a server, as they are in its row."""
    row = cloud.row(server_id)
    type(row).objects.using(row._state.db).filter(pk=row.pk).update(**columns)


def entries(cloud: Cloud, server_id: str, key: str) -> list[InstanceAction]:
    """Of its history, those of a key."""
    return [action for action in cloud.history(server_id) if action.key == key]


def counted(name: str, **labels: str) -> float:
    """A metric of ours, as it is now."""
    return REGISTRY.get_sample_value(f"stillwater_{name}", labels) or 0.0
