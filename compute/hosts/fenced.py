"""Fenced hosts: an operator forced the host down, and it has not beaten since.

What was begun there cannot go on. What is left there is removed when the host is back: a queued step of the action
RemoveStaleGuest. All in the targeted cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet
from django.utils import timezone

from cloud import log
from compute.errors import StateConflict
from compute.models import Allocation, Instance, InstanceAction, Service, Step
from compute.operations import journal, registry
from compute.operations.action import (
    REQUESTS,
    ActionParams,
    ActionRequest,
    AnyAction,
    On,
    Role,
    compensate,
    fault_of,
)
from compute.virt.base import Driver, PowerState

logger = log.get(__name__)
ALIVE = frozenset({PowerState.RUNNING, PowerState.PAUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupParams(ActionParams):
    """The parameters of the action that removes a stale guest from the host `source`."""

    evacuation: int | None = None  # id of the evacuation's InstanceAction, whose status depends on this


def is_fenced(service: Service) -> bool:
    """Whether the host is forced down and has not beaten since: a host that beats again is not off."""
    return service.forced_down and service.last_seen_up == service.seen_when_forced


def hosts() -> frozenset[str]:
    """Return the names of all fenced hosts of the targeted cell."""
    forced = Service.objects.computes(forced_down=True)
    return frozenset(service.host for service in forced if is_fenced(service))


# -- steps begun on a fenced host


def abort_steps(instance: Instance) -> Step | None:
    """End the open steps of a server on fenced hosts; return a request not yet begun that can follow it, or None.

    Run it in the transaction that takes the server for its new action; it locks the server's row. The returned step is
    to be moved to the server's new host. Raises StateConflict while an action goes on elsewhere.
    """
    list(Instance.objects.select_for_update().filter(pk=instance.pk).values_list("pk"))
    instance.refresh_from_db()
    off, follows = hosts(), None
    for step in _open_steps(instance):
        action = registry.every().get(step.action.key)
        if step.host not in off:
            if instance.task_state is not None:
                raise StateConflict(instance.uuid, instance.vm_state, instance.task_state)
        elif action is not None and _can_follow(action, step):
            follows = step
        else:
            _end(instance, step, off)
    return follows


def abort_all_steps(instance: Instance) -> set[str]:
    """As `abort_steps()`, for a deleted server: no request follows it. Return the hosts that may have a stale guest."""
    off, left = hosts(), {instance.host}
    for step in _open_steps(instance):
        if step.host in off:
            left.add(step.host)
            _end(instance, step, off)
    return left


def _open_steps(instance: Instance) -> list[Step]:
    found = Step.objects.select_related("action").open(server_id=instance.uuid)
    return list(found.order_by("pk"))


def _can_follow(action: AnyAction, step: Step) -> bool:
    """Whether the step is a request not yet begun whose action needs nothing that only the lost host has."""
    at_home = all(spec.on in (On.HOST, On.CONDUCTOR) for spec in action.steps)
    unbegun = step.state == Step.State.QUEUED and step.queue == REQUESTS and not step.attempts
    return at_home and unbegun and action.clean_up is None


def _end(instance: Instance, step: Step, off: frozenset[str]) -> None:
    """Compensate what the action did elsewhere and end it; a step that only cleans up waits for the host's return."""
    action = registry.every().get(step.action.key)
    here = Step.objects.open(pk=step.pk)
    if action is not None and action.retry_always(step.name) and not action.is_compensation(step.name):
        begun = here.exclude(state=Step.State.QUEUED)
        begun.update(state=Step.State.QUEUED, not_before=None, **journal.FREE)
        return
    why = f"host {step.host} is gone"
    here.update(state=Step.State.CANCELLED, finished_at=timezone.now(), details=why)
    if action is not None and action.clean_up is None:
        journal.remember_fault(step.action, fault_of(InterruptedError(why)))
    while action is not None and compensate(action, step.action, instance):
        undo = step.action.steps.order_by("-pk")[0]
        if undo.host not in off:
            return
        journal.cancel(undo, f"host {undo.host} is gone")
        schedule_cleanup(instance, undo.host)
    journal.close_action(step.action, outcome=why, failed=True)


# -- stale guests


def schedule_cleanup(instance: Instance, host: str, evacuation: InstanceAction | None = None) -> None:
    """Queue the cleanup of the server's stale guest on a host, unless one is queued. In the caller's transaction."""
    if _cleanups(host).filter(server_id=instance.uuid).exists():
        return
    params = CleanupParams(source=host, evacuation=evacuation.pk if evacuation is not None else None)
    registry.playing(Role.REMOVE_STALE_GUEST).record(instance, ActionRequest.of_cloud(instance), params)


def pending_cleanups(host: str) -> int:
    """Return how many servers, evacuated or being evacuated, a host must clean up before it may take any."""
    leaving = _open_evacuations(host).values_list("server_id", flat=True)
    return len({*_cleanups(host).values_list("server_id", flat=True), *leaving})


def is_evacuated(uuid: str) -> bool:
    """Whether an evacuation of the server is open."""
    key = registry.key_of(Role.EVACUATION)
    return InstanceAction.objects.filter(key=key, finished_at__isnull=True, server_id=uuid).exists()


def power_off_evacuated(host: str, driver: Driver) -> int:
    """Power off guests of servers that live elsewhere by now or are being evacuated; return how many.

    A host that is back does this first of all. Its queues are consumed by then, so a queued cleanup may remove such a
    guest, even a running one, before this looks.
    """
    owed = set(_cleanups(host).values_list("server_id", flat=True))
    home = Instance.objects.living(uuid__in=owed, host=host).values_list("uuid", flat=True)
    lost = (owed - set(home)) | set(_open_evacuations(host).values_list("server_id", flat=True))
    alive = [uuid for uuid, power in driver.guests().items() if uuid in lost and power in ALIVE] if lost else []
    for uuid in alive:
        driver.power_off(uuid)
        logger.warning("fenced.guest_powered_off", server=uuid)
    return len(alive)


def cancel_cleanups(host: str) -> None:
    """Cancel the cleanups of a host that the operator removed from the cloud."""
    for step in _cleanups(host).select_related("action"):
        if journal.cancel(step, "the host was removed"):
            journal.close_action(step.action, outcome="the host was removed")


def _cleanups(host: str) -> QuerySet[Step]:
    key = registry.key_of(Role.REMOVE_STALE_GUEST)
    return Step.objects.open(action__key=key, host=host)


def _open_evacuations(host: str) -> QuerySet[InstanceAction]:
    """Open evacuations of servers with an allocation on a host, to another host: each such host may have the guest."""
    room = Allocation.objects.filter(node__host=host).values("server_id")
    key = registry.key_of(Role.EVACUATION)
    leaving = InstanceAction.objects.filter(key=key, finished_at__isnull=True, server_id__in=room)
    return leaving.exclude(params__has_key="destination", params__destination=host)  # no key: not yet picked
