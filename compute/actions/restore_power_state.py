"""Restore the recorded power state of a guest that was switched by something other than Stillwater."""

from __future__ import annotations

from django.db.models import Q

from compute.actions.power_update import PowerUpdate, PowerUpdateParams
from compute.models import InstanceAction
from compute.operations.action import OnDrain, Role, ServerAction, StepContext, StepSpec
from compute.power.reconcile import BACK_MOVES, EVENT, RestorePowerStateParams
from compute.power.sync_policy import PowerGoal
from compute.state import Move
from compute.virt.base import GuestLocked, PowerState

IS_SO = {
    PowerGoal.ON: {PowerState.RUNNING},
    PowerGoal.OFF: {PowerState.SHUTDOWN, PowerState.CRASHED, PowerState.SUSPENDED},
    PowerGoal.PAUSED: {PowerState.PAUSED},
    PowerGoal.SUSPENDED: {PowerState.SUSPENDED},
}
LOCKED = "skipped, another controller is using its machine"
UNABLE = {PowerState.NOSTATE, PowerState.SHUTDOWN, PowerState.CRASHED}  # these cannot be paused or suspended


class RestorePowerState(ServerAction[RestorePowerStateParams]):
    """Opened by the power sync (`power/reconcile.py`). The server keeps its state; its guest is restored to it."""

    name = "power_sync"
    role = Role.RESTORE_POWER_STATE
    move = BACK_MOVES[PowerGoal.ON]
    steps = (StepSpec("restore_power_state", EVENT, on_drain=OnDrain.CANCEL),)

    def move_for(self, params: RestorePowerStateParams) -> Move:
        """Return the move to the power state to restore."""
        return BACK_MOVES[params.to]

    def restore_power_state(self, run: StepContext[RestorePowerStateParams]) -> None:
        """Restore the power state. Look again first: what the sync saw may be over.

        A guest that is left alone is compared again by the next sync.
        """
        back, uuid = run.params.to, run.instance.uuid
        # In this order: Ironic keeps its lock until its event is answered. So without a lock the event is recorded.
        is_locked = run.hypervisor.is_locked(uuid)
        seen = run.hypervisor.power_state(uuid)
        if is_locked:
            how = LOCKED
        elif seen in IS_SO[back]:
            how = f"already {back}"
        elif seen is PowerState.NOSTATE or (back in (PowerGoal.PAUSED, PowerGoal.SUSPENDED) and seen in UNABLE):
            how = f"skipped, it is {seen.name.lower()} by now"
        else:
            how = _told(run) or _do(run, back)
        run.note(f"power sync: {how}; {run.params.why}")


def _told(run: StepContext[RestorePowerStateParams]) -> str:
    """Return why a power-update goes first; "" when none is pending and none is newer than this action."""
    events = InstanceAction.objects.filter(server_id=run.instance.uuid, key=PowerUpdate.__name__)
    ahead = events.filter(Q(finished_at__isnull=True) | Q(pk__gt=run.action.pk)).order_by("-pk").first()
    if ahead is None:
        return ""
    return f"skipped, {PowerUpdateParams.load(ahead.params).event.tag} of {ahead.request_id} goes first"


def _do(run: StepContext[RestorePowerStateParams], back: PowerGoal) -> str:
    """Restore the power state; return the outcome in words."""
    driver, uuid = run.hypervisor, run.instance.uuid
    if back in (PowerGoal.ON, PowerGoal.OFF):
        try:
            driver.put_back(run.instance.as_guest(), on=back is PowerGoal.ON)
        except GuestLocked:
            return LOCKED
    elif back is PowerGoal.PAUSED:
        driver.pause(uuid)
    else:
        driver.suspend(uuid)
    return f"restored ({back})"
