"""The user is not content: the server goes back where it came from, in its old size."""

from __future__ import annotations

from typing import Any

from compute import state
from compute.migration import cold, moves
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import OPS, ActionRequest, On, ServerAction, StepContext, StepSpec
from compute.placement import claims
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState, VirtError


class RevertResize(ServerAction):
    """Resized -> what it was before the resize or the cold migration, where it was."""

    key = name = "revertResize"
    policy = "os_compute_api:servers:revert_resize"
    move = Move(frozenset({VmState.RESIZED}), TaskState.RESIZE_REVERTING)
    steps = (
        StepSpec("power_off", "compute_revert_resize", undo="power_on_again"),
        StepSpec("come_back", "compute_finish_revert_resize", On.SOURCE, OPS, undo="leave_again", no_return=True),
        StepSpec("forget_destination", "compute_revert_resize_cleanup", On.DEST, OPS),
        StepSpec("count", "conductor_revert_resize", On.CONDUCTOR, OPS),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """Of which move."""
        return cold.status_of(instance) if instance.vm_state == VmState.RESIZED else {}

    def power_off(self, run: StepContext) -> None:
        """With grace. It stays here until it lives at its source again."""
        run.note(grace.shut_down(run))

    def power_on_again(self, run: StepContext) -> None:
        """The source cannot have it back."""
        if run.params["was"] == VmState.ACTIVE and not run.instance.deleted:
            run.hypervisor.power_on(run.instance.as_guest())

    def come_back(self, run: StepContext) -> None:
        """As it was when it left, and on if it was on."""
        if run.instance.deleted:
            return
        guest = cold.resized(run.instance, run.params["old"]).as_guest()
        run.hypervisor.revert_migration(guest)
        if run.params["was"] != VmState.ACTIVE:
            return
        try:
            run.hypervisor.power_on(guest)
        except VirtError as error:
            if error.retryable:
                raise
            run.note(f"it is back, and could not be powered on: {error}")  # its power state will say so

    def leave_again(self, run: StepContext) -> None:
        """Somebody took the server when it was back and that was not on record: it lives where the record says."""
        if run.hypervisor.power_state(run.instance.uuid) != PowerState.NOSTATE:
            moves.destroy_stale(run, run.params["source"])

    def forget_destination(self, run: StepContext) -> None:
        """Nothing of it is left there."""
        moves.destroy_stale(run, run.params["destination"])

    def after_failure(self, run: StepContext, error: BaseException) -> StepSpec | None:
        """What the destination does not let go of is not what the project has."""
        return self.steps[-1] if run.step.name == "forget_destination" else None

    def count(self, run: StepContext) -> None:
        """On a conductor, which may touch the global side: the project has the old size."""
        cold.count(run, without=run.params["move"])

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """With its return it belongs to its old host, and is free for the next request."""
        if run.step.name != "come_back":
            return
        params = run.params
        zone = params["source_zone"] or run.instance.availability_zone  # versions before did not write it down
        where = {"host": params["source"], "node": params["source_node"], "availability_zone": zone}
        state.set_location(run.instance, **where, **params["old"])
        claims.release(run.instance.uuid, params["destination_node"])
        registry.follow(run.instance, params["destination"])
        cold.ended(run, "reverted", power_state)

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """All is recorded."""
