"""Remove what a host still has of a server that lives elsewhere, or is deleted: asked for while the host was gone."""

from __future__ import annotations

from compute.migration import moves
from compute.models import InstanceAction
from compute.operations import journal
from compute.operations.action import OPS, On, ServerAction, StepContext, StepSpec
from compute.virt.base import PowerState


class ForgetGuest(ServerAction):
    """Opened by `gone.leave`. It waits until the host is back, in nobody's way, and is tried until it is done."""

    name = "forget_guest"
    steps = (StepSpec("remove", "compute_forget_guest", On.SOURCE, OPS),)

    def remove(self, run: StepContext) -> None:
        """Gone already is success; a guest that came back meanwhile is left alone."""
        moves.destroy_stale(run, run.params["source"])

    def must_run(self, name: str) -> bool:
        """Nobody else will do it."""
        return True

    def after_failure(self, run: StepContext, error: BaseException) -> StepSpec | None:
        """Again, from the first try."""
        return self.steps[0]

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """The evacuation is completed, where it was one: `cleaned` is what its status is told by."""
        if "evacuation" in run.params:
            evacuation = InstanceAction.objects.get(pk=run.params["evacuation"])
            journal.change_params(evacuation, cleaned=True)
