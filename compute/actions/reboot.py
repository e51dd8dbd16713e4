"""Restart a server: SOFT asks its operating system, HARD resets it."""

from __future__ import annotations

from typing import Any

from compute import grace, journal, state
from compute.lifecycle import Asked, Run, ServerAction, StepSpec, fault_of
from compute.models import Instance
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

SOFT = Move(frozenset({VmState.ACTIVE}), TaskState.REBOOTING, VmState.ACTIVE)
HARD = Move(
    frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.PAUSED, VmState.SUSPENDED, VmState.ERROR}),
    TaskState.REBOOTING_HARD,
    VmState.ACTIVE,
    failed=VmState.ERROR,
    over=state.REBOOT_WAITS,
)


class Reboot(ServerAction):
    """Active -> active, through off and on. HARD leads out of most other states, too."""

    key = name = "reboot"
    policy = "os_compute_api:servers:reboot"
    body = {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["HARD", "Hard", "hard", "SOFT", "Soft", "soft"]}},
        "required": ["type"],
        "additionalProperties": False,
    }
    steps = (StepSpec("reboot", "compute_reboot_instance"),)

    def prepare(self, instance: Instance, asked: Asked) -> dict[str, Any]:
        """Which kind."""
        return {"hard": asked.body["type"].upper() == "HARD"}

    def begin(self, instance: Instance, asked: Asked, params: dict[str, Any]) -> None:
        """HARD preempts whatever it may; what was preempted and nobody began is cancelled."""

        state.begin(instance, HARD if params["hard"] else SOFT)
        if params["hard"]:
            journal.cancel_open(instance.uuid, "preempted by a hard reboot")

    def refusal(self, instance: Instance, conflict: state.StateConflict) -> str:
        """As for every action, with the move that was asked for."""
        attribute, value = ("vm_state", conflict.vm_state)
        if conflict.task_state:
            attribute, value = "task_state", conflict.task_state
        return f"Cannot 'reboot' instance {instance.uuid} while it is in {attribute} {value}"

    def reboot(self, run: Run) -> None:
        """A soft one waits for the guest and falls back to hard, and says so."""
        guest, driver = run.instance.as_guest(), run.hypervisor
        if not run.params["hard"] and driver.power_state(guest.uuid) == PowerState.RUNNING:
            seconds = grace.timeout_for(run.instance.image.get("properties", {}))
            outcome = grace.shut_down(driver, guest.uuid, run.deadline(seconds))
            run.note(outcome.replace("forced off", "fell back to a hard reboot"))
        driver.reboot_hard(guest)

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """Busy -> active."""
        state.finish(run.instance, _move(run), power_state)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """A soft reboot that failed leaves the record as it was; a hard one is an ERROR."""

        state.abandon(run.instance, _move(run), fault_of(error), power_state)


def _move(run: Run) -> Move:
    return HARD if run.params["hard"] else SOFT


