"""Shut a server down for an action that needs it off, and start it again when the action does not succeed."""

from __future__ import annotations

from compute.operations.action import StepContext
from compute.shutdown import grace
from compute.state import TaskState
from compute.virt.base import PowerState

LEAVING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


def turn_off(run: StepContext) -> None:
    """Shut the guest down; first record in the params whether it was on. Raises StepWaiting."""
    driver, uuid = run.hypervisor, run.instance.uuid
    if "was_on" not in run.params:
        run.change_params(was_on=driver.power_state(uuid) is PowerState.RUNNING)
    run.note(grace.shut_down(run))


def turn_on_again(run: StepContext) -> None:
    """Start the guest if it was on before, unless the server is deleted or being deleted."""
    wanted = run.params.get("was_on") and not run.instance.deleted
    if wanted and run.instance.task_state not in LEAVING:
        run.hypervisor.power_on(run.instance.as_guest())
