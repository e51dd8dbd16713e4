"""Resolve power mismatches of idle servers: each one's power authority decides, few statements write all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction

from cells.context import current_alias
from cloud import log, metrics
from cloud.caller import new_request_id
from compute import state
from compute.hosts import guest_shutdown
from compute.models import Instance, InstanceAction, Service, Step
from compute.operations import journal, registry
from compute.operations.action import OPS, ActionParams, Role
from compute.power import flap_guard, sync_policy
from compute.power.sync_policy import OFF, PowerAuthority, PowerGoal, SyncAction, Verdict
from compute.state import Move, TaskState, VmState
from compute.virt.base import Driver, PowerState, VirtError

logger = log.get(__name__)
RUNS = {VmState.ACTIVE, VmState.RESCUED}  # on record as running; a rescued server runs its rescue disk
EVENT = "compute_power_sync"
# The vm_state stays as it is while the guest is put back.
BACK_MOVES = {
    PowerGoal.ON: Move(state.LIVING, TaskState.POWERING_ON),
    PowerGoal.OFF: Move(state.LIVING, TaskState.POWERING_OFF),
    PowerGoal.PAUSED: Move(state.LIVING, TaskState.PAUSING),
    PowerGoal.SUSPENDED: Move(state.LIVING, TaskState.SUSPENDING),
}
BACK_NAMES = {PowerGoal.ON: "start", PowerGoal.OFF: "stop", PowerGoal.PAUSED: "pause", PowerGoal.SUSPENDED: "suspend"}
FOLLOW_NAMES = {VmState.STOPPED: "stop", VmState.ACTIVE: "start", VmState.PAUSED: "pause"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePowerStateParams(ActionParams):
    """The parameters of the action that restores a guest's power state."""

    to: PowerGoal
    why: str = ""  # what the power sync saw


@dataclass(slots=True)
class PowerMismatch:
    """The power state seen of one server, and what is done; `verdict` None: only the power state is recorded."""

    instance: Instance
    power_state: PowerState
    why: str
    verdict: Verdict | None = None
    truth: str = ""  # the power authority, and where it is set
    went_with_host: bool = False
    left_alone: bool = False  # it flaps

    @property
    def is_news(self) -> bool:
        """Whether the power state itself is not on record yet."""
        return bool(self.power_state != self.instance.power_state)

    @property
    def back(self) -> PowerGoal | None:
        """The power state to which the guest is put back; None: it is not."""
        return self.verdict.back if self.verdict else None

    @property
    def acts(self) -> bool:
        """Whether the verdict is more than a warning."""
        return self.verdict is not None and self.verdict.does is not SyncAction.WARN

    @property
    def columns(self) -> dict[str, Any]:
        """The columns to write when the guest is not put back."""
        vm_state = self.verdict.vm_state if self.verdict else None
        columns: dict[str, Any] = {"power_state": self.power_state}
        columns |= {"vm_state": vm_state} if vm_state else {}
        return columns | ({"resumes_with_host": True} if self.went_with_host else {})

    @property
    def outcome(self) -> str:
        """What was done, for logs and the metric."""
        words = {SyncAction.FOLLOW: "followed", SyncAction.RESTORE: "restored", SyncAction.WARN: "warned"}
        return "suspended" if self.left_alone else words[self.verdict.does] if self.verdict else "recorded"


def reconcile(host: str, driver: Driver, seen: Sequence[PowerMismatch], *, found_by: str, booted: bool) -> int:
    """Resolve each mismatch by its power authority, unless its server changed since; return how many differed.

    With `booted` a server that runs on record and is off went down with the host, and no guest is put back.
    """
    if not seen:
        return 0
    _judge(seen, booted=booted)
    backs = [one for one in seen if one.back]
    stays = _not_put_back(host, backs, booted=booted)
    flaps = flap_guard.check([one.instance.uuid for one in backs if one.instance.uuid not in stays])
    for one in backs:
        if one.instance.uuid in stays:
            one.verdict = None
        elif flaps.hold(one.instance.uuid):
            one.verdict, one.left_alone = None, True
    found = [one for one in seen if one.is_news or one.acts or flaps.begins(one.instance.uuid)]
    for one in found:
        if one.went_with_host:
            one.why = _shutdown_outcome(one.instance, driver)
    if found:
        _write(found, flaps, found_by)
    return len(found)


def _judge(seen: Sequence[PowerMismatch], *, booted: bool) -> None:
    """Set the power authority and the verdict of each mismatch. One query."""
    rows = Instance.objects.filter(pk__in=[one.instance.pk for one in seen]).only("metadata", "image", "flavor")
    speaks = {row.pk: row for row in rows}
    for one in seen:
        truth, who = PowerAuthority(settings.POWER_TRUTH), "its host"
        one.went_with_host = booted and one.instance.vm_state in RUNS and one.power_state in OFF
        if one.went_with_host:  # the host's setting also decides whether it starts again: STILLWATER_RESUME_GUESTS
            truth = PowerAuthority.HYPERVISOR
        elif one.instance.pk in speaks:
            truth, who = sync_policy.authority_for(speaks[one.instance.pk], truth)
        one.verdict, one.truth = sync_policy.verdict(truth, one.instance.vm_state, one.power_state), f"{truth} ({who})"


def _not_put_back(host: str, backs: Sequence[PowerMismatch], *, booted: bool) -> set[str]:
    """Return the ids of those that are not put back: an open step, e.g. of a power-update, goes first.

    All of them on a host that has just booted, that drains, that shuts its guests down, or that is forced down.
    """
    everybody = {one.instance.uuid for one in backs}
    if not backs or booted:
        return everybody
    service = Service.objects.of_host(host)
    if service is None or not service.takes_requests or service.forced_down or guest_shutdown.has_open(host):
        return everybody
    waiting = Step.objects.open(server_id__in=everybody)
    return set(waiting.values_list("server_id", flat=True))


def _shutdown_outcome(instance: Instance, driver: Driver) -> str:
    """Return how the guest went down with its host, from its shutdown timer."""
    try:
        timer = driver.timer(instance.uuid)
    except VirtError:
        timer = None
    return f"it went down with its host; {timer.words()}" if timer and timer.ended else "it went down with its host"


def _write(found: Sequence[PowerMismatch], flaps: flap_guard.FlapCounter, found_by: str) -> None:
    """Write all in one transaction. Servers that have a task, or had one since they were read, are left out."""
    observed = [(one.instance, one.columns) for one in found if not one.back]
    put_back = [(one.instance, BACK_MOVES[one.back], one.power_state) for one in found if one.back]
    restless = [one.instance.uuid for one in found if one.left_alone and one.is_news]
    with transaction.atomic(using=current_alias()):
        won = {instance.pk for instance in (*state.observe_all(observed), *state.begin_all(put_back))}
        mine = [one for one in found if one.instance.pk in won]
        journal.open_many([entry for one in mine for entry in _journal_entries(one, flaps)])
        flaps.go_on(restless)
    _log(mine, flaps, found_by)


def _journal_entries(one: PowerMismatch, flaps: flap_guard.FlapCounter) -> Iterator[tuple[InstanceAction, list[Step]]]:
    """Yield the journal entry of a mismatch: the server's history also shows changes that no user requested."""
    seen = f"the guest is {one.power_state.name.lower()}: {one.why}"
    if one.back:
        params = RestorePowerStateParams(to=one.back, why=f"{seen}; power authority {one.truth}")
        key = registry.key_of(Role.RESTORE_POWER_STATE)
        action, (spec,) = _action(one, BACK_NAMES[one.back], key, params=params.as_json()), registry.named(key).steps
        yield action, [Step(name=spec.name, event=spec.event, host=one.instance.host, queue=spec.queue)]
    elif one.verdict and one.verdict.vm_state:
        yield _closed_entry(_action(one, FOLLOW_NAMES[one.verdict.vm_state], "", outcome=seen), one, "observe")
    elif flaps.begins(one.instance.uuid):
        words = f"power sync: {flaps.words}; {seen}"
        action = _action(one, "power_sync", flap_guard.KEY, outcome=words, message="Error")
        yield _closed_entry(action, one, "leave_alone")


def _action(one: PowerMismatch, name: str, key: str, **more: Any) -> InstanceAction:
    return InstanceAction(
        server_id=one.instance.uuid, action=name, key=key, request_id=new_request_id(), user_id="",
        project_id=one.instance.project_id, **more,
    )  # fmt: skip


def _closed_entry(action: InstanceAction, one: PowerMismatch, name: str) -> tuple[InstanceAction, list[Step]]:
    ended = Step.State.FAILED if action.message else Step.State.DONE
    words = {"state": ended, "details": action.outcome}
    return action, [Step(name=name, event=EVENT, host=one.instance.host, queue=OPS, **words)]


def _log(mine: Sequence[PowerMismatch], flaps: flap_guard.FlapCounter, found_by: str) -> None:
    for one in mine:
        server = one.instance.uuid
        fields = {"power_state": one.power_state.name, "reason": one.why, "authority": one.truth}
        if flaps.begins(server):
            metrics.POWER_FLAPS.inc()
            logger.error("power.flapping", server=server, detail=flaps.words, **fields)
        elif one.verdict and one.verdict.does is SyncAction.WARN:
            logger.warning("power.unexpected", server=server, vm_state=one.instance.vm_state, **fields)
        else:
            event = "power.restored" if one.back else "power.recorded"
            logger.info(event, server=server, **fields)
    for outcome, number in Counter(one.outcome for one in mine).items():
        metrics.POWER_MISMATCHES.labels(found_by, outcome).inc(number)
