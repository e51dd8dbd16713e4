"""Handle the external event `power-update`: record the new power state; never switch the machine.

Source: Nova spec "Support server power state update through external event".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloud import log
from compute import state
from compute.actions.bases.event import EventParams
from compute.models import Instance, InstanceAction, Service, Step
from compute.operations import journal
from compute.operations.action import OPS, REQUESTS, ServerAction, StepContext, StepSpec
from compute.operations.step import StepWaiting
from compute.state import Move, TaskState, VmState
from compute.virt.base import NotSupported, PowerState, VirtError

logger = log.get(__name__)
ON, OFF = "POWER_ON", "POWER_OFF"
NAMES = {ON: "start", OFF: "stop"}  # tag of the event -> name of the action in the server's history
SAID = {ON: PowerState.RUNNING, OFF: PowerState.SHUTDOWN}
MOVES = {
    ON: Move(frozenset({VmState.STOPPED}), TaskState.POWERING_ON, VmState.ACTIVE),
    OFF: Move(frozenset({VmState.ACTIVE, VmState.PAUSED}), TaskState.POWERING_OFF, VmState.STOPPED),
}
# power state of the machine -> vm_state to record; other power states leave vm_state as it was
RECORDS = {
    PowerState.RUNNING: VmState.ACTIVE, PowerState.PAUSED: VmState.PAUSED, PowerState.SHUTDOWN: VmState.STOPPED,
    PowerState.CRASHED: VmState.STOPPED,
}  # fmt: skip
# power states that agree with the event; the machine may be in another one
AS_SAID = {ON: frozenset({PowerState.RUNNING, PowerState.PAUSED}),
           OFF: frozenset({PowerState.SHUTDOWN, PowerState.CRASHED})}  # fmt: skip
OTHER = {ON: OFF, OFF: ON}
AGAIN = 5.0  # seconds until a waiting step checks by itself whether the server is free


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUpdateParams(EventParams):
    """The parameters of a power-update; its tag is `event.tag`."""

    taken: int | None = None  # generation of the server when this action took it; None: it has not, or lost it
    move: str = ""  # ON or OFF: the move of the server, which is not that of the event where the machine contradicts it
    does: PowerState = PowerState.NOSTATE  # the power state of the machine, from the driver


Run = StepContext[PowerUpdateParams]


class PowerUpdate(ServerAction[PowerUpdateParams]):
    """Stopped -> active, or active or paused -> stopped. Opened by `compute.external_events`.

    It takes the server when it runs, not when the event arrives: during a task it waits for the task to end. Of several
    events only the newest counts. An event that the record agrees with, or that cannot change it, is success.
    """

    name = "power-update"
    moves = MOVES
    steps = (StepSpec("power_update", "compute_power_update", queue=OPS),)

    def move_for(self, params: PowerUpdateParams) -> Move:
        """Return the move of the event; the opposite one where the machine contradicts event and record."""
        return MOVES[params.move or params.event.tag]

    def must_run(self, name: str) -> bool:
        """Return True: the step itself decides what is left to do, whatever task the server has."""
        return True

    def retry_always(self, name: str) -> bool:
        """Return False: the power sync finds what this step could not record."""
        return False

    def power_update(self, run: Run) -> None:
        """Take the server and pass the event to the driver. Raises StepWaiting.

        A step that runs again goes on with the server it has taken, or takes it anew after another action had it.
        """
        if not _is_ours(run) and not _take(run):
            return
        said = run.params.event.tag
        try:
            does = run.hypervisor.power_update_event(run.instance.uuid, SAID[said])
        except NotSupported as error:
            logger.error("power_update.not_supported", event_tag=said, error=str(error))
            raise
        run.change_params(lambda params: replace(params, does=does))
        run.note(f"{said} was said, and the machine is {does.name.lower()}")

    def next_step(self, done: str, run: Run) -> StepSpec | None:
        """Repeat the step after another action took the server, and on the new host after a move."""
        _lock(run.instance)
        if run.instance.deleted or not run.instance.host:
            return None
        lost = run.params.taken is not None and not _is_ours(run)
        if not lost and run.instance.host == run.step.host:
            return None
        journal.change_params(run.action, PowerUpdateParams, lambda params: replace(params, taken=None))
        return self.steps[0]

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """Record the power state of the machine. `next_step` has locked the row."""
        if run.params.taken is None:
            return
        if not _is_ours(run):
            run.note(_gone(run.instance))
            return
        does = run.params.does
        move = replace(self.move_for(run.params), done=RECORDS.get(does))
        state.finish(run.instance, move, None if does is PowerState.NOSTATE else does)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server as it was; the fault stays with the action."""
        _lock(run.instance)
        if _is_ours(run):
            state.abandon(run.instance, self.move_for(run.params), None)


def _take(run: Run) -> bool:
    """Take an idle server; return False, with a note, when there is nothing to do. Raises StepWaiting.

    Under the lock of the row: every task that ends later wakes the step that waits for it.
    """
    if over := _over(run):
        run.note(over)
        return False
    seen, waits = run.instance.generation, None
    does = _look(run)
    with run.fenced():
        _lock(run.instance)
        if run.instance.generation != seen:
            does = PowerState.NOSTATE  # it was read before the server changed
        over = _over(run)
        if not over and run.instance.task_state is not None:
            waits = _wait(run)
        elif not over:
            over = _begin(run, does)
    if waits is not None:
        raise waits
    run.note(over)
    return not over


def _over(run: Run) -> str:
    """Return why nothing is left to do, whatever task the server has; "" when something may be left."""
    instance = run.instance
    newer = InstanceAction.objects.filter(server_id=instance.uuid, key=run.action.key, pk__gt=run.action.pk)
    newest = newer.order_by("-pk").first()
    if newest is not None:
        return f"superseded by {PowerUpdateParams.load(newest.params).event.tag} of {newest.request_id}"
    return _gone(instance) if instance.deleted or instance.host != run.step.host else ""


def _begin(run: Run, does: PowerState) -> str:
    """Take an idle server and return ""; or return why not, and record only its power state."""
    instance, said = run.instance, run.params.event.tag
    contradicts = does in AS_SAID[OTHER[said]]
    for move in (said, OTHER[said]) if contradicts else (said,):
        if instance.vm_state in MOVES[move].start:
            state.begin(instance, MOVES[move])
            _record_taken(run, move)
            return ""
    if does not in (PowerState.NOSTATE, instance.power_state):
        state.observe(instance, does)
    if instance.vm_state == MOVES[said].done:
        return f"the server is {instance.vm_state} already"
    return f"the server is {instance.vm_state}, and stays so"


def _record_taken(run: Run, move: str) -> None:
    taken = run.instance.generation
    journal.change_params(run.action, PowerUpdateParams, lambda params: replace(params, taken=taken, move=move))


def _look(run: Run) -> PowerState:
    """Return the power state of the machine; NOSTATE when the hypervisor does not answer."""
    try:
        return run.hypervisor.power_state(run.instance.uuid)
    except VirtError:
        return PowerState.NOSTATE


def _gone(instance: Instance) -> str:
    if instance.deleted:
        return "the server was deleted"
    return f"the server lives on {instance.host}" if instance.host else "the server is on no host any more"


def _wait(run: Run) -> StepWaiting:
    """Make the step wait for the task to end, and wake older waiting steps: they end as superseded."""
    older = Step.objects.filter(server_id=run.instance.uuid, state=Step.State.WAITING, name=run.step.name)
    for step in older.filter(action__key=run.action.key, action__lt=run.action.pk):
        journal.resume_step(step)
    queue = REQUESTS if _is_for_later(run) else OPS
    journal.wait_step(run.step, journal.FOR_THE_TASK, seconds=AGAIN, queue=queue)
    return StepWaiting(journal.FOR_THE_TASK, recorded=True)


def _is_for_later(run: Run) -> bool:
    """Return whether the drain need not wait for this step.

    That is so when the host drains, and the task belongs to a request that no process begins meanwhile.
    """
    host = Service.objects.of_host(run.step.host)
    if host is None or host.takes_requests:
        return False
    steps = Step.objects.open(server_id=run.instance.uuid)
    others = steps.exclude(action__key=run.action.key)
    unbegun = {"host": run.step.host, "queue": REQUESTS, "state": Step.State.QUEUED, "attempts": 0}
    return others.filter(**unbegun).exists() and not others.exclude(**unbegun).exists()


def _is_ours(run: Run) -> bool:
    """Return whether nothing has changed the server since this action took it."""
    return run.params.taken == run.instance.generation


def _lock(instance: Instance) -> None:
    """Lock the row until the caller's transaction ends, and read it again."""
    list(Instance.objects.select_for_update().filter(pk=instance.pk).values_list("pk"))
    instance.refresh_from_db()
