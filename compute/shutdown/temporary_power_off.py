"""Shut a server down for an action that needs it off, and start it again when the action does not succeed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compute.operations.action import ActionParams, StepContext
from compute.shutdown import grace
from compute.state import TaskState
from compute.virt.base import PowerState

LEAVING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryPowerOffParams(ActionParams):
    """The parameters of an action that needs the server off for a while."""

    was_on: bool | None = None  # whether the guest ran before; None: the step has not looked yet


def turn_off(run: StepContext[TemporaryPowerOffParams]) -> None:
    """Shut the guest down; first record in the params whether it was on. Raises StepWaiting."""
    driver, uuid = run.hypervisor, run.instance.uuid
    if run.params.was_on is None:
        runs = driver.power_state(uuid) is PowerState.RUNNING
        run.change_params(lambda params: replace(params, was_on=runs))
    run.note(grace.shut_down(run))


def turn_on_again(run: StepContext[TemporaryPowerOffParams]) -> None:
    """Start the guest if it was on before, unless the server is deleted or being deleted."""
    wanted = run.params.was_on and not run.instance.deleted
    if wanted and run.instance.task_state not in LEAVING:
        run.hypervisor.power_on(run.instance.as_guest())
