"""Shutdown of all guests of a host, its progress, and their start when the host is back. In the targeted cell.

Each guest is one action (`actions/shutdown_with_host.py`, `actions/start_with_host.py`). The host carries them out even
if the process that asked dies. All actions of one shutdown share one request id.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from cells.context import current_alias
from cloud import log
from cloud.caller import new_request_id
from compute import state
from compute.errors import StateConflict
from compute.hosts import guest_batches
from compute.models import ComputeNode, Instance, Service, Step, shutdown_preferences
from compute.operations import journal, registry
from compute.operations.action import ActionRequest, Role
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState
from compute.virt.shutdown_timer import ShutdownTimer

logger = log.get(__name__)
AT_ONCE = 16  # default number of guests that are shut down, or started, at the same time
ON = (PowerState.RUNNING, PowerState.PAUSED)
COMES_UP = Move(frozenset({VmState.STOPPED}), TaskState.POWERING_ON, VmState.ACTIVE)
# a rescued, resized or failed server that was on: its guest starts, its vm_state stays
STAYS = Move(state.LIVING - {VmState.STOPPED, VmState.ACTIVE, VmState.PAUSED}, TaskState.POWERING_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestShutdownParams(guest_batches.BatchParams):
    """The parameters of the shutdown of one guest with its host, which is `source`."""

    until: float | None = None  # time (seconds since 1970) at which guests that are still on are forced off
    joined: bool = False  # the guest is being shut down by another action already
    taken: bool = False  # the server has this action's task
    was_running: bool = False  # before it was taken
    called_off: bool = False  # the guest may start again at once


@dataclass(frozen=True, slots=True)
class GuestShutdown:
    """The progress of one server in the shutdown of its host."""

    server_id: str
    name: str
    request_id: str
    priority: int
    state: str  # waiting | shutting down | off | failed | called off
    words: str = ""  # for people: what it waits for, its progress, or how it ended
    seconds_left: float | None = None
    signals: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in ("off", "failed", "called off")


# -- shutdown


def are_on(host: str) -> QuerySet[Instance]:
    """Return the servers of a host that are recorded as on, or that have an action under way.

    Without bare-metal servers: they stay on while the host that manages them is down.
    """
    machines = ComputeNode.objects.filter(host=host, is_whole=True).values("hypervisor_hostname")
    here = Instance.objects.living(host=host).exclude(node__in=machines)
    on = Q(power_state__in=ON) | Q(vm_state__in=(VmState.ACTIVE, VmState.PAUSED)) | Q(task_state__isnull=False)
    return here.filter(on).exclude(vm_state=VmState.SUSPENDED, task_state__isnull=True)


def paused(host: str) -> list[Instance]:
    """Return the paused servers of a host: their memory will be lost."""
    return list(are_on(host).filter(vm_state=VmState.PAUSED).order_by("pk"))


def ask(host: str, *, by: str, at_once: int = 0, seconds: float | None = None) -> str:
    """Open a shutdown action for every guest of a host that is on; return their request id, empty when there is none.

    Called again during a shutdown, it also includes servers that came meanwhile, and changes `at_once` and the time
    limit where given. After `seconds` guests that are still on are forced off; None: each guest has its own grace
    period.
    """
    until = time.time() + seconds if seconds is not None else None
    with guest_batches.lock(host):
        steps = open_steps(host).exclude(action__params__has_key="called_off")
        going = list(steps.select_related("action").order_by("pk"))
        at_once = at_once or (_params(going[0]).at_once if going else AT_ONCE)
        until = until or (_params(going[0]).until if going else None)
        for step in going:
            _change(step, at_once, until)
        request_id = going[0].action.request_id if going else new_request_id()
        listed = {step.server_id for step in going}
        others = [one for one in are_on(host).order_by("pk") if one.uuid not in listed]
        new = [(shutdown_preferences.priority(one.metadata), one) for one in others]
        for rank, instance in sorted(new, key=lambda ranked: ranked[0]):
            params = GuestShutdownParams(source=host, rank=rank, at_once=at_once, until=until)
            asked = ActionRequest.of_cloud(instance, user_id=by, request_id=request_id)
            registry.playing(Role.SHUT_DOWN_WITH_HOST).record(instance, asked, params)
    return request_id if new or listed else ""


def going_on(host: str) -> bool:
    """Whether a host's guests are being shut down and this has not been called off."""
    return open_steps(host).exclude(action__params__has_key="called_off").exists()


def has_open(host: str) -> bool:
    """Whether any guest shutdown of the host is open, called off or not."""
    return open_steps(host).exists()


def open_steps(host: str) -> QuerySet[Step]:
    """Return the steps of the host's guest shutdowns that have not ended."""
    return guest_batches.open_steps(host, registry.key_of(Role.SHUT_DOWN_WITH_HOST))


def call_off(host: str, why: str) -> int:
    """Cancel the guest shutdowns that have not begun; return how many were open.

    Those that have begun go on to their end and are marked; their guests may start again at once.
    """
    with guest_batches.lock(host):
        steps = list(open_steps(host).select_related("action").order_by("pk"))
        for step in steps:
            idle = Step.objects.filter(pk=step.pk, state__in=(Step.State.QUEUED, Step.State.WAITING))
            params = _params(step)
            unbegun = not (params.begun or params.joined)
            if unbegun and idle.update(state=Step.State.CANCELLED, finished_at=timezone.now(), details=why):
                journal.close_action(step.action, outcome=why, failed=True)
            elif not params.called_off:
                journal.change_params(step.action, GuestShutdownParams, lambda params: replace(params, called_off=True))
    return len(steps)


def read(host: str, request_id: str = "") -> tuple[GuestShutdown, ...]:
    """Return the progress of a host's guests, for one shutdown or the current one. At most three queries."""
    if not request_id:
        request_id = open_steps(host).order_by("-pk").values_list("action__request_id", flat=True).first() or ""
    if not request_id:
        return ()
    key = registry.key_of(Role.SHUT_DOWN_WITH_HOST)
    steps = Step.objects.filter(action__request_id=request_id, action__key=key, host=host)
    found = list(steps.select_related("action").defer("traceback").order_by("pk"))
    named = Instance.objects.filter(uuid__in=[step.server_id for step in found])
    names = dict(named.values_list("uuid", "display_name"))
    lines = [_line(step, names.get(step.server_id, "")) for step in found]
    return tuple(sorted(lines, key=lambda line: line.priority))


def still_on(host: str) -> list[Instance]:
    """Return the idle servers of a host that are recorded as on, e.g. started since the shutdown was asked for."""
    return list(are_on(host).filter(task_state__isnull=True).order_by("pk"))


def _change(step: Step, at_once: int, until: float | None) -> None:
    """Change the time limit or the number at once; a waiting step checks again."""
    params = _params(step)
    if (params.at_once, params.until) != (at_once, until):
        journal.change_params(
            step.action, GuestShutdownParams, lambda params: replace(params, at_once=at_once, until=until)
        )
        journal.resume_step(step)


def _params(step: Step) -> GuestShutdownParams:
    return GuestShutdownParams.load(step.action.params)


def _line(step: Step, name: str) -> GuestShutdown:
    timer = ShutdownTimer.load(step.timer)
    left = timer.left(time.time()) if timer is not None and step.is_open else None
    return GuestShutdown(
        step.server_id, name, step.action.request_id, _params(step).rank, _state_of(step, timer),
        step.details, left, timer.signals if timer else 0,
    )  # fmt: skip


def _state_of(step: Step, timer: ShutdownTimer | None) -> str:
    ended = {Step.State.DONE: "off", Step.State.FAILED: "failed", Step.State.CANCELLED: "called off"}
    begun = timer is not None or step.state == Step.State.RUNNING
    return ended.get(Step.State(step.state)) or ("shutting down" if begun else "waiting")


# -- start


def start_guests(host: str) -> int:
    """Start the guests that went down with their host, those shut down last first; return how many.

    Without STILLWATER_RESUME_GUESTS they stay off and are no longer marked to resume.
    """
    flagged = Instance.objects.living(host=host, resumes_with_host=True)
    priority = shutdown_preferences.priority
    servers: Sequence[Instance] = sorted(flagged, key=lambda one: (-priority(one.metadata), one.pk))
    if not settings.RESUME_GUESTS:
        stay_off = flagged.update(resumes_with_host=False)
        if stay_off:
            logger.info("host.guests_stay_off", host=host, servers=stay_off, reason="STILLWATER_RESUME_GUESTS is off")
        return 0
    request_id = new_request_id()
    begun = sum(_start_guests(instance, request_id) for instance in servers)
    if begun:
        logger.info("host.guests_starting", host=host, servers=begun, request_id=request_id)
    return begun


def _start_guests(instance: Instance, request_id: str) -> bool:
    stays = instance.vm_state != VmState.STOPPED
    rank = -shutdown_preferences.priority(instance.metadata)
    try:
        with transaction.atomic(using=current_alias()):
            state.begin(instance, STAYS if stays else COMES_UP)
            params = guest_batches.BatchParams(rank=rank, at_once=AT_ONCE, stays=stays)
            asked = ActionRequest.of_cloud(instance, request_id=request_id)
            registry.playing(Role.START_WITH_HOST).record(instance, asked, params)
    except StateConflict:  # another request took the server first
        Instance.objects.filter(pk=instance.pk).update(resumes_with_host=False)
        return False
    return True


def takes_work(host: str) -> bool:
    """Whether a host is neither draining, drained nor being emptied."""
    service = Service.objects.of_host(host)
    return service is not None and not service.drain_state
