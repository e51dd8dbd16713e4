"""Keep the recorded power state true: the periodic power sync and the hypervisor's events.

Which side wins is in `sync_policy.py`, what is done about a power mismatch in `reconcile.py`.
"""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

from cloud import log, metrics
from compute.hosts import guest_shutdown
from compute.models import Instance
from compute.power import orphan_guests, reconcile
from compute.power.reconcile import PowerMismatch
from compute.power.sync_policy import DECIDED
from compute.virt.base import Driver, GuestEvent, PowerState, VirtError

logger = log.get(__name__)
RUNS = reconcile.RUNS
FOUND = "found by the power sync"
COLUMNS = (
    "uuid", "project_id", "host", "vm_state", "task_state", "power_state", "generation", "launched_at", "deleted",
)  # fmt: skip


def record_event(host: str, driver: Driver, event: GuestEvent, *, booted: bool = False) -> None:
    """Handle one event of the hypervisor. A server with a task is left to its task.

    An event may be late, so it only says which guest to look at: the present state counts. `booted`: see `sync`.
    """
    instance = _servers(host).filter(uuid=event.uuid).first()
    if instance is None or not _is_idle(instance):
        return
    try:
        power_state = driver.power_state(event.uuid)
    except VirtError as error:
        logger.warning("power.event_record_failed", server=event.uuid, error=repr(error))  # the power sync will do it
        return
    if _may_differ(instance, power_state):
        difference = PowerMismatch(instance, power_state, event.detail)
        reconcile.reconcile(host, driver, [difference], found_by="event", booted=booted)


def sync(host: str, driver: Driver, *, booted: bool = False) -> int:
    """Compare every server of the host with the hypervisor; return how many differed. Raises VirtError.

    One hypervisor call and one query; a constant number more when any server differs. The rows are read first: a later
    change of a server is newer than the state seen here, and wins.

    `booted`: the host has booted, or its guests were stopped with it. A server that runs on record and is off then
    went down with the host, and may start again with it (`compute/hosts/guest_shutdown.py`).
    """
    rows = list(_servers(host))
    try:
        actual = driver.guests()
    except VirtError:
        metrics.POWER_SYNCS.labels("failed").inc()
        raise
    idle = [instance for instance in rows if _is_idle(instance)]
    seen = [PowerMismatch(one, actual.get(one.uuid, PowerState.NOSTATE), FOUND) for one in idle]
    found = [difference for difference in seen if _may_differ(difference.instance, difference.power_state)]
    differing = reconcile.reconcile(host, driver, found, found_by="sync", booted=booted)
    orphan_guests.compare(host, driver, {one.uuid for one in rows}, {one.uuid for one in idle}, actual)
    metrics.POWER_SYNCS.labels("done").inc()
    return differing


def _servers(host: str) -> QuerySet[Instance]:
    """Return the servers of a host. `goes_down`: it is shut down with its host, and that action records the outcome."""
    down = guest_shutdown.open_steps(host).filter(server_id=OuterRef("uuid"))
    here = Instance.objects.living(host=host).only(*COLUMNS)
    return here.annotate(goes_down=Exists(down))


def _is_idle(instance: Instance) -> bool:
    """Return whether the server was built, has no task, and is not being shut down with its host."""
    goes_down = bool(getattr(instance, "goes_down"))  # noqa: B009  mypy does not know the annotation
    return instance.launched_at is not None and instance.task_state is None and not goes_down


def _may_differ(instance: Instance, power_state: PowerState) -> bool:
    """Return whether there may be a mismatch. A task may have recorded the power state, and not the vm_state."""
    if power_state == PowerState.NOSTATE:
        return False
    return power_state != instance.power_state or (instance.vm_state, power_state) in DECIDED
