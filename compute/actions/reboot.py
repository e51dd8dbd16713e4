"""Restart a server: SOFT asks its operating system, HARD resets it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from compute import state
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import ActionParams, ActionRequest, ServerAction, StepContext, StepSpec
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

SOFT = Move(frozenset({VmState.ACTIVE}), TaskState.REBOOTING, VmState.ACTIVE)
HARD = Move(
    frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.PAUSED, VmState.SUSPENDED, VmState.ERROR}),
    TaskState.REBOOTING_HARD,
    VmState.ACTIVE,
    failed=VmState.ERROR,
    over=state.REBOOT_WAITS | {TaskState.POWERING_OFF},  # ends the grace period of a stop
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootParams(ActionParams):
    """The parameters of a reboot."""

    hard: bool = False
    mark: str = ""  # by which the host knows that the guest was rebooted


class Reboot(ServerAction[RebootParams]):
    """Active -> active, through off and on. HARD also starts from most other states."""

    key = name = "reboot"
    policy = "os_compute_api:servers:reboot"
    body = {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["HARD", "Hard", "hard", "SOFT", "Soft", "soft"]}},
        "required": ["type"],
        "additionalProperties": False,
    }
    moves = {"SOFT": SOFT, "HARD": HARD}
    steps = (StepSpec("reboot", "compute_reboot_instance"),)

    def prepare(self, instance: Instance, asked: ActionRequest) -> RebootParams:
        """Return the kind of reboot, and the mark by which the host knows that it was done.

        The id of the step is no such mark: ids repeat after a cell was restored from a backup.
        """
        return RebootParams(hard=asked.body["type"].upper() == "HARD", mark=str(uuid4()))

    def move_for(self, params: RebootParams) -> Move:
        """Return the move of the requested kind."""
        return HARD if params.hard else SOFT

    def begin(self, instance: Instance, asked: ActionRequest, params: RebootParams) -> RebootParams | None:
        """Take the server. HARD preempts the tasks its move allows, and cancels their queued steps."""
        begun = super().begin(instance, asked, params)
        if params.hard:
            registry.cancel_open(instance, "preempted by a hard reboot")
        return begun

    def reboot(self, run: StepContext[RebootParams]) -> None:
        """Reboot the guest. SOFT shuts it down with its grace period, else falls back to HARD and notes it.

        Run again after a restart, a guest that was rebooted already is neither signalled nor forced again.
        """
        guest, driver, mark = run.instance.as_guest(), run.hypervisor, run.params.mark or str(run.step.pk)
        if driver.rebooted(guest.uuid, mark):
            run.note("was done before the restart")
            return
        waited = run.step.timer is not None  # and the guest is off by now
        if not run.params.hard and (waited or driver.power_state(guest.uuid) == PowerState.RUNNING):
            run.note(grace.as_reboot(grace.shut_down(run)))
        elif run.params.hard:
            grace.end_now(run)
        run.hypervisor.reboot_hard(guest, mark)
