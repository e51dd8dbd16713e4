"""Hosts that are gone: an operator has said that they are off, and nothing was heard of them since.

What was begun there cannot go on, and what is left there goes when the host is back: a queued step of the
action ForgetGuest. All in the targeted cell.
"""

from __future__ import annotations

from uuid import uuid4

from django.db.models import QuerySet
from django.utils import timezone

from cloud import log
from compute import actions, dispatch, journal
from compute.errors import StateConflict
from compute.lifecycle import REQUESTS, On, ServerAction, fault_of, make_good
from compute.models import Allocation, Instance, InstanceAction, Service, Step
from compute.models.host import COMPUTE
from compute.virt.base import Driver, PowerState

logger = log.get(__name__)
FORGET, EVACUATE = "ForgetGuest", "Evacuate"  # keys in the journal
ALIVE = frozenset({PowerState.RUNNING, PowerState.PAUSED})


def is_gone(service: Service) -> bool:
    """Forced down, and no heartbeat since: a host that beats again is not off, whatever was said of it."""
    return service.forced_down and service.last_seen_up == service.seen_when_forced


def hosts() -> frozenset[str]:
    """Every host that is gone."""
    forced = Service.objects.filter(binary=COMPUTE, forced_down=True)
    return frozenset(service.host for service in forced if is_gone(service))


# -- what was begun there


def let_go(instance: Instance) -> Step | None:
    """End what the server has begun on hosts that are gone. In the transaction that takes the server.

    The answer is a request nobody has begun, which is to follow the server to its new host.
    Raises StateConflict while something goes on elsewhere.
    """
    list(Instance.objects.select_for_update().filter(pk=instance.pk).values_list("pk"))
    instance.refresh_from_db()
    off, follows = hosts(), None
    for step in _open_steps(instance):
        action = actions.every().get(step.action.key)
        if step.host not in off:
            if instance.task_state is not None:
                raise StateConflict(instance.uuid, instance.vm_state, instance.task_state)
        elif action is not None and _can_follow(action, step):
            follows = step
        else:
            _end(instance, step, off)
    return follows


def end_all(instance: Instance) -> set[str]:
    """As `let_go`, for a server that is deleted: nothing follows it. The hosts that may have something of it."""
    off, left = hosts(), {instance.host}
    for step in _open_steps(instance):
        if step.host in off:
            left.add(step.host)
            _end(instance, step, off)
    return left


def _open_steps(instance: Instance) -> list[Step]:
    found = Step.objects.select_related("action").filter(server_id=instance.uuid, state__in=journal.OPEN)
    return list(found.order_by("pk"))


def _can_follow(action: ServerAction, step: Step) -> bool:
    """Only a request that nobody has begun, and that will find on another host what it needs."""
    at_home = all(spec.on in (On.HOST, On.CONDUCTOR) for spec in action.steps)
    unbegun = step.state == Step.State.QUEUED and step.lane == REQUESTS and not step.attempts
    return at_home and unbegun and action.clean_up is None


def _end(instance: Instance, step: Step, off: frozenset[str]) -> None:
    """Undo what its action did elsewhere, and end it. What only cleans up waits for the host's return."""
    action = actions.every().get(step.action.key)
    here = Step.objects.filter(pk=step.pk, state__in=journal.OPEN)
    if action is not None and action.insists_on(step.name) and not action.makes_good(step.name):
        begun = here.exclude(state=Step.State.QUEUED)
        begun.update(state=Step.State.QUEUED, not_before=None, **journal.FREE)
        return
    why = f"host {step.host} is gone"
    here.update(state=Step.State.CANCELLED, finished_at=timezone.now(), details=why)
    if action is not None and action.clean_up is None:
        journal.remember_fault(step.action, fault_of(InterruptedError(why)))
    while action is not None and make_good(action, step.action, instance):
        undo = step.action.steps.order_by("-pk")[0]
        if undo.host not in off:
            return
        journal.cancel(undo, f"host {undo.host} is gone")
        leave(instance, undo.host)
    journal.close_action(step.action, outcome=why, failed=True)


# -- what is left there


def leave(instance: Instance, host: str, evacuation: InstanceAction | None = None) -> None:
    """Whatever a host still has of a server goes when the host is there. In the caller's transaction."""
    owed = Step.objects.filter(host=host, server_id=instance.uuid, action__key=FORGET, state__in=journal.OPEN)
    if owed.exists():
        return
    params = {"source": host} | ({"evacuation": evacuation.pk} if evacuation is not None else {})
    action = journal.open_action(
        instance, name="forget_guest", key=FORGET, request_id=f"req-{uuid4()}", user_id="",
        project_id=instance.project_id, params=params,
    )  # fmt: skip
    journal.open_step(action, name="forget", event="compute_forget_guest", host=host, lane=dispatch.OPS)


def owes(host: str) -> int:
    """How many servers a host has to let go of before it may be trusted with any: evacuated, or just being so."""
    leaving = _leaving(host).values_list("server_id", flat=True)
    return len({*_owed(host).values_list("server_id", flat=True), *leaving})


def is_evacuated(uuid: str) -> bool:
    """Whether an evacuation of the server goes on."""
    return InstanceAction.objects.filter(key=EVACUATE, finished_at__isnull=True, server_id=uuid).exists()


def turn_off(host: str, driver: Driver) -> int:
    """A host that is back turns off what lives elsewhere by now, or is about to, first of all.

    The queue is heard already then: what is owed may be removed, running as it is, before this looks.
    """
    owed = set(_owed(host).values_list("server_id", flat=True))
    home = Instance.objects.filter(uuid__in=owed, host=host, deleted=False).values_list("uuid", flat=True)
    lost = (owed - set(home)) | set(_leaving(host).values_list("server_id", flat=True))
    alive = [uuid for uuid, power in driver.guests().items() if uuid in lost and power in ALIVE] if lost else []
    for uuid in alive:
        driver.power_off(uuid)
        logger.warning("gone.turned_off", server=uuid)
    return len(alive)


def forget_host(host: str) -> None:
    """The operator has taken a host out of the cloud: nobody waits for it."""
    for step in _owed(host).select_related("action"):
        if journal.cancel(step, "the host was removed"):
            journal.close_action(step.action, outcome="the host was removed")


def _owed(host: str) -> QuerySet[Step]:
    return Step.objects.filter(action__key=FORGET, host=host, state__in=journal.OPEN)


def _leaving(host: str) -> QuerySet[InstanceAction]:
    """Evacuations of servers that have room on a host, and go elsewhere: the guest may be at any such host."""
    room = Allocation.objects.filter(node__host=host).values("server_id")
    leaving = InstanceAction.objects.filter(key=EVACUATE, finished_at__isnull=True, server_id__in=room)
    return leaving.exclude(params__has_key="destination", params__destination=host)  # no key: not yet picked
