"""The user is content: the server stays where it went, in its new size."""

from __future__ import annotations

from typing import Any

from compute.migration import cold, moves
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, ActionResponse, On, ServerAction, StepContext, StepSpec
from compute.placement import claims
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState


class ConfirmResize(ServerAction):
    """Resized -> what it was before the resize or the cold migration."""

    key = name = "confirmResize"
    policy = "os_compute_api:servers:confirm_resize"
    move = Move(frozenset({VmState.RESIZED}), TaskState.RESIZE_CONFIRMING)
    steps = (
        StepSpec("forget_source", "compute_confirm_resize", On.SOURCE, no_return=True),
        StepSpec("count", "conductor_confirm_resize", On.CONDUCTOR, OPS),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """Of which move."""
        return cold.status_of(instance) if instance.vm_state == VmState.RESIZED else {}

    def answer(self, params: dict[str, Any], asked: ActionRequest) -> ActionResponse:
        """No body."""
        return ActionResponse(204)

    def forget_source(self, run: StepContext) -> None:
        """What the source has kept for a revert."""
        moves.remove_stale(run, run.params["source"])

    def count(self, run: StepContext) -> None:
        """On a conductor, which may touch the global side: the project has the new size."""
        cold.count(run, without=run.params["move"])

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """The source's room is free; then the server is."""
        if run.step.name == "forget_source":
            claims.release(run.instance.uuid, run.params["source_node"])
        else:
            cold.ended(run, "confirmed")

    def complete(self, run: StepContext, power_state: PowerState | None) -> None:
        """All is recorded."""
