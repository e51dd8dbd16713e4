"""What stories of a host that goes down with guests have in common."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from cells.context import target_cell
from compute.actions.shutdown_with_host import ShutdownWithHost
from compute.actions.start_with_host import StartWithHost
from compute.hosts import guest_batches, guest_shutdown
from compute.models import Instance, Service, Step
from compute.operations import recovery
from compute.virt.base import PowerState
from tasks import boot_marker, restart_guests
from tasks.worker import Worker
from tests.byhand import Cloud, Host


def one_host(cloud: Cloud) -> Host:
    """Every server goes to host1."""
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    return cloud.hosts["host1"]


def drained(cloud: Cloud, wanted: bool = True) -> None:
    """What the host's record says."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(drain_wanted=wanted)


def ask(cloud: Cloud, **words: Any) -> str:
    """What the command does."""
    with target_cell(cloud.cells["cell1"]):
        return guest_shutdown.ask("host1", by="ann@desk", **words)


def read(cloud: Cloud, request_id: str = "") -> dict[str, guest_shutdown.GuestShutdown]:
    """The lines, by server."""
    with target_cell(cloud.cells["cell1"]):
        return {line.server_id: line for line in guest_shutdown.read("host1", request_id)}


def back(cloud: Cloud, *, booted: bool = False) -> int:
    """The host's next start, after what its last life left; how many come back."""
    host = cloud.hosts["host1"]
    host.restart()
    if booted:
        boot_marker.expect_boot(settings.HOST_STATE)
    before = open_starts(cloud)
    with target_cell(host.cell):
        restart_guests.after_start(process(host))
    begun = open_starts(cloud) - before
    cloud.work()
    return begun


def process(host: Host) -> Worker:
    """Who the host's process is."""
    return Worker("host", host.name, host.cell.id, host.driver, host.incarnation)


def open_starts(cloud: Cloud) -> int:
    """Guests that are on their way back."""
    with target_cell(cloud.cells["cell1"]):
        return guest_batches.open_steps("host1", StartWithHost.__name__).count()


def come_back(cloud: Cloud) -> int:
    """By the clock, now and then; how many come back."""
    with target_cell(cloud.cells["cell1"]):
        begun = restart_guests.look(process(cloud.hosts["host1"]))
    cloud.work()
    return begun


def flagged(cloud: Cloud) -> set[str]:
    """Servers that are to be back with their host."""
    with target_cell(cloud.cells["cell1"]):
        return set(Instance.objects.filter(resumes_with_host=True).values_list("uuid", flat=True))


def step_of(cloud: Cloud, server_id: str, key: str = ShutdownWithHost.__name__) -> Step:
    """Its newest step of a kind."""
    with target_cell(cloud.cells["cell1"]):
        found = Step.objects.select_related("action").filter(server_id=server_id, action__key=key)
        return found.order_by("-pk")[0]


def is_off(cloud: Cloud, *servers: str) -> bool:
    """Their guests are."""
    guests = cloud.hosts["host1"].driver.guests()
    return all(guests[server_id] is PowerState.SHUTDOWN for server_id in servers)


def order(cloud: Cloud, verb: str) -> list[str]:
    """Whose guests a verb was called for, in that order, each once."""
    return list(dict.fromkeys(uuid for called, uuid in cloud.hosts["host1"].driver.calls if called == verb))


def boot(api: Any, cloud: Cloud, count: int = 1, **more: Any) -> list[str]:
    """So many servers."""
    return [cloud.boot(api, f"s{number}", **more) for number in range(count)]


def priorities(api: Any, cloud: Cloud, *wanted: int) -> list[str]:
    """A server of each priority."""
    return [cloud.boot(api, f"p{each}", metadata={"shutdown_priority": str(each)}) for each in wanted]


def due(host: Host) -> None:
    """What the relay does when their time is over."""
    with target_cell(host.cell):
        Step.objects.filter(state="waiting", timer__isnull=True).update(not_before="2020-01-01T00:00:00Z")
        recovery.relay()
