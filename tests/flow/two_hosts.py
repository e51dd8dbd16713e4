"""What stories of two hosts have in common: a second host in the cell, deaths at every step, one guest in one place."""

from __future__ import annotations

from typing import Any

from cells.context import target_cell
from compute.models import Allocation, HostNeed, InstanceAction, Service, Step
from compute.operations import journal, recovery, registry, runner
from tests.byhand import Cloud

CONDUCTOR = "nova-conductor@test"
LIVE = {"os-migrateLive": {"host": None, "block_migration": "auto"}}


def booted(admin: Any, cloud: Cloud, host: str = "host1") -> str:
    """A server on host1; host3 is in the same cell, host2 is not."""
    if "host3" not in cloud.hosts:
        cloud.add_host("host3", "cell1")
    server_id = cloud.boot(admin, host=host)
    assert cloud.row(server_id).host == host
    return server_id


def homes(cloud: Cloud, server_id: str) -> list[str]:
    """Hosts on which the guest is."""
    return [name for name, host in cloud.hosts.items() if server_id in host.driver.guests()]


def claimed(cloud: Cloud, server_id: str) -> set[str]:
    """Hosts that keep room for it."""
    with target_cell(cloud.cells["cell1"]):
        held = Allocation.objects.filter(server_id=server_id).select_related("node")
        return {allocation.node.host for allocation in held}


def needed(cloud: Cloud) -> set[str]:
    """Hosts that begun operations still want something of."""
    with target_cell(cloud.cells["cell1"]):
        return set(HostNeed.objects.values_list("host", flat=True))


def drain(cloud: Cloud, host: str, wanted: bool = True) -> None:
    """An operator's request, as the host's record shows it."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=host).update(drain_wanted=wanted)


def waiting(cloud: Cloud) -> Step:
    """The step that waits."""
    [(_, step)] = cloud.queued()
    return step


def until(cloud: Cloud, name: str) -> Step:
    """Go on until a step waits, and not further."""
    for _ in range(20):
        for cell, step in cloud.queued():
            if step.name == name:
                return step
            cloud._deliver(cell, step)
    raise AssertionError(f"{name} never waited: {cloud.queued()}")


def claim(cloud: Cloud, step: Step) -> Step:
    """Whoever is to run it claims it, and goes no further: where a kill -9 leaves it."""
    if step.host:
        found = cloud.hosts[step.host].begin(step.pk)
    else:
        with target_cell(cloud.cells["cell1"]):
            found = journal.claim(step.pk, CONDUCTOR, "first life")
    assert found is not None
    return found


def work(cloud: Cloud, step: Step) -> None:
    """Its work is done, and not recorded."""
    driver = cloud.hosts[step.host].driver if step.host else None
    with target_cell(cloud.cells["cell1"]):
        action = registry.named(step.action.key)
        getattr(action, step.name)(action.context(step, driver))


def restart(cloud: Cloud, step: Step) -> int:
    """The next life of whoever ran it."""
    if step.host:
        return cloud.hosts[step.host].restart()
    with target_cell(cloud.cells["cell1"]):
        return recovery.recover(CONDUCTOR, "next life", list)


def killed(cloud: Cloud, step: Step, when: str) -> None:
    """Whoever is to run the step is killed "before", "inside" or "after the work", and starts again."""
    if when != "before":
        step = claim(cloud, step)
        if when == "after the work":
            work(cloud, step)
    assert restart(cloud, step) == (when != "before")


def action_of(cloud: Cloud, server_id: str) -> InstanceAction:
    """The newest."""
    return cloud.history(server_id)[-1]


def call_off(cloud: Cloud, step: Step) -> bool:
    """What a draining host does with it."""
    with target_cell(cloud.cells["cell1"]):
        fresh = Step.objects.select_related("action").get(pk=step.pk)
        return runner.hand_back(registry.named(fresh.action.key), fresh)
