"""A server that an action turns off on its way, with grace, and on again when it does not get there."""

from __future__ import annotations

from compute.operations.action import StepContext
from compute.shutdown import grace
from compute.state import TaskState
from compute.virt.base import PowerState

LEAVING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


def turn_off(run: StepContext) -> None:
    """Off when this returns; whether it was on is in the params from before that."""
    driver, uuid = run.hypervisor, run.instance.uuid
    if "was_on" not in run.params:
        run.change_params(was_on=driver.power_state(uuid) is PowerState.RUNNING)
    run.note(grace.shut_down(run))


def turn_on_again(run: StepContext) -> None:
    """Only what was on, and that nobody is deleting."""
    wanted = run.params.get("was_on") and not run.instance.deleted
    if wanted and run.instance.task_state not in LEAVING:
        run.hypervisor.power_on(run.instance.as_guest())
