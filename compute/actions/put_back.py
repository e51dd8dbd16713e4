"""Bring a guest back to what its server is on record, after somebody switched it behind our back."""

from __future__ import annotations

from typing import Any

from compute.lifecycle import OnDrain, Run, ServerAction, StepSpec
from compute.power.settling import BACK_MOVES, EVENT
from compute.power.truths import Back
from compute.state import Move
from compute.virt.base import PowerState

IS_SO = {
    Back.ON: {PowerState.RUNNING},
    Back.OFF: {PowerState.SHUTDOWN, PowerState.CRASHED, PowerState.SUSPENDED},
    Back.PAUSED: {PowerState.PAUSED},
    Back.SUSPENDED: {PowerState.SUSPENDED},
}
UNABLE = {PowerState.NOSTATE, PowerState.SHUTDOWN, PowerState.CRASHED}  # to be paused or suspended


class PutBack(ServerAction):
    """Opened by the power sync (`settling.py`). The server stays what it is; its guest follows."""

    name = "power_sync"
    steps = (StepSpec("put_back", EVENT, on_drain=OnDrain.CANCEL),)

    def move_for(self, params: dict[str, Any]) -> Move:
        """By how the guest is to be again."""
        return BACK_MOVES[Back(params.get("to", Back.ON))]

    def put_back(self, run: Run) -> None:
        """Looks again first: what was seen may be over, and a guest that cannot be told is left alone."""
        back = Back(run.params["to"])
        seen = run.hypervisor.power_state(run.instance.uuid)
        if seen in IS_SO[back]:
            run.note(f"power sync: {back} again without our doing; {run.params['why']}")
        elif seen is PowerState.NOSTATE or (back in (Back.PAUSED, Back.SUSPENDED) and seen in UNABLE):
            run.note(f"power sync: left alone, it is {seen.name.lower()} by now; {run.params['why']}")
        else:
            _do(run, back)
            run.note(f"power sync: put back {back}; {run.params['why']}")


def _do(run: Run, back: Back) -> None:
    driver, uuid = run.hypervisor, run.instance.uuid
    if back is Back.ON:
        driver.power_on(run.instance.as_guest())
    elif back is Back.OFF:
        driver.power_off(uuid)
    elif back is Back.PAUSED:
        driver.pause(uuid)
    else:
        driver.suspend(uuid)
