"""The power state on record is the true one: the periodic sync and the hypervisor's own events."""

from __future__ import annotations

from uuid import uuid4

from django.db import transaction
from django.db.models import QuerySet

from cells.context import current_alias
from cloud import log
from compute import host_guests, journal, state, turns
from compute.errors import StateConflict
from compute.models import Instance, Step
from compute.state import VmState
from compute.virt.base import Driver, GuestEvent, PowerState, VirtError

logger = log.get(__name__)
OFF = {PowerState.SHUTDOWN, PowerState.CRASHED}
RUNS = {VmState.ACTIVE, VmState.RESCUED}  # on record as running; one in rescue, in rescue

# (vm_state on record, what the hypervisor says) -> vm_state to record. What is not listed stays.
FOLLOW: dict[tuple[str, PowerState], VmState] = {
    (VmState.ACTIVE, PowerState.SHUTDOWN): VmState.STOPPED,
    (VmState.ACTIVE, PowerState.CRASHED): VmState.STOPPED,
    (VmState.ACTIVE, PowerState.PAUSED): VmState.PAUSED,
    (VmState.PAUSED, PowerState.RUNNING): VmState.ACTIVE,
    (VmState.PAUSED, PowerState.SHUTDOWN): VmState.STOPPED,
    (VmState.PAUSED, PowerState.CRASHED): VmState.STOPPED,
    (VmState.STOPPED, PowerState.RUNNING): VmState.ACTIVE,
}


def noticed(host: str, driver: Driver, event: GuestEvent, *, booted: bool = False) -> None:
    """One event of the hypervisor. A server with a task is left to its task.

    An event may be late, so it only says where to look: what counts is the state now. `booted`: see `sync`.
    """
    instance = _idle(host).filter(uuid=event.uuid).first()
    if instance is None:
        return
    try:
        power_state = driver.power_state(event.uuid)
    except VirtError as error:
        logger.warning("power.event_not_recorded", server=event.uuid, error=repr(error))  # the sync will
        return
    _see(instance, power_state, driver, event.detail, booted=booted)


def sync(host: str, driver: Driver, *, booted: bool = False) -> int:
    """Compare every server of the host with the hypervisor: one query, one call; how many differed.

    The rows are read first: whatever changed a server after that is newer than what is seen here.
    `booted`: the machine has, or its guests were stopped with it. Who is on record as running and is off went down
    with it, and is to be back with it (see `host_guests.py`).
    """
    rows = list(_idle(host).only("uuid", "project_id", "host", "vm_state", "power_state", "generation"))
    actual = driver.guests()
    differing = 0
    for instance in rows:
        power_state = actual.get(instance.uuid, PowerState.NOSTATE)
        if _is_known(instance, power_state):
            continue
        differing += 1
        _see(instance, power_state, driver, "found by the power sync", booted=booted)
    return differing


def _idle(host: str) -> QuerySet[Instance]:
    """Nothing goes on with them, and their host does not go down: else that is to tell."""
    launched = Instance.objects.filter(host=host, deleted=False, launched_at__isnull=False)
    going_down = turns.open_steps(host, host_guests.DOWN).values("server_id")
    return launched.filter(task_state__isnull=True).exclude(uuid__in=going_down)


def _is_known(instance: Instance, power_state: PowerState) -> bool:
    """The power state alone does not tell: a task may have recorded it, and left vm_state to us."""
    if power_state == PowerState.NOSTATE:
        return True
    return power_state == instance.power_state and (instance.vm_state, power_state) not in FOLLOW


def _see(instance: Instance, power_state: PowerState, driver: Driver, why: str, *, booted: bool) -> None:
    """Write down what is seen of a server, and whether it is to be back with its host."""
    if booted and instance.vm_state in RUNS and power_state in OFF:
        _record(instance, power_state, _how(instance, driver), resumes_with_host=True)
    else:
        _record(instance, power_state, why)


def _record(instance: Instance, power_state: PowerState, why: str, *, resumes_with_host: bool = False) -> None:
    if _is_known(instance, power_state):
        return
    follows = FOLLOW.get((instance.vm_state, power_state))
    try:
        with transaction.atomic(using=current_alias()):
            state.observe(instance, power_state, follows, resumes_with_host=resumes_with_host)
            if follows is not None:
                _journal(instance, follows, f"the guest is {power_state.name.lower()}: {why}")
    except StateConflict:
        return  # somebody gave it a task meanwhile
    logger.info("power.recorded", server=instance.uuid, power_state=power_state.name, why=why)


def _how(instance: Instance, driver: Driver) -> str:
    """How it went down with its host, as its own clock says."""
    try:
        clock = driver.clock(instance.uuid)
    except VirtError:
        clock = None
    return f"it went down with its host; {clock.words()}" if clock and clock.ended else "it went down with its host"


def _journal(instance: Instance, follows: VmState, outcome: str) -> None:
    """A change nobody asked for is in the server's history like one that was."""
    name = {VmState.STOPPED: "stop", VmState.ACTIVE: "start", VmState.PAUSED: "pause"}[follows]
    action = journal.open_action(
        instance, name=name, key="", request_id=f"req-{uuid4()}", user_id="",
        project_id=instance.project_id, params={},
    )  # fmt: skip
    Step.objects.create(
        action=action, server_id=instance.uuid, name="observe", event="compute_power_sync",
        host=instance.host, lane="ops", state=Step.State.DONE, queued_at=action.started_at,
        started_at=action.started_at, finished_at=action.started_at, details=outcome,
    )  # fmt: skip
    journal.close_action(action, outcome=outcome)
