"""Remove what a host still has of a server that lives elsewhere, or is deleted: asked for while the host was gone."""

from __future__ import annotations

from contextlib import suppress

from compute import gone, journal, moving
from compute.lifecycle import OPS, On, Run, ServerAction, StepSpec
from compute.models import InstanceAction
from compute.virt.base import GuestNotFound, NotSupported, PowerState, VirtError


class ForgetGuest(ServerAction):
    """Opened by `gone.leave`. It waits until the host is back, in nobody's way, and is tried until it is done."""

    name = "forget_guest"
    steps = (StepSpec("forget", "compute_forget_guest", On.SOURCE, OPS),)

    def forget(self, run: Run) -> None:
        """Gone already is success. A guest that lives here after all is left alone, or gets back what it handed over.

        Not while an evacuation goes on: what is taken back may start. Raises VirtError, and is tried again, then.
        """
        uuid, host = run.instance.uuid, run.params["source"]
        if not moving.lives_at(run, host):
            moving.end_at(run, host)
            return
        if gone.is_evacuated(uuid):
            raise VirtError(f"server {uuid} is being evacuated from here")
        with suppress(GuestNotFound, NotSupported):
            run.hypervisor.take_back(run.instance.as_guest())

    def must_run(self, name: str) -> bool:
        """Nobody else will do it."""
        return True

    def after_failure(self, run: Run, error: BaseException) -> StepSpec | None:
        """Again, from the first try."""
        return self.steps[0]

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """The evacuation is completed, where it was one: `cleaned` is what its status is told by."""
        if "evacuation" in run.params:
            evacuation = InstanceAction.objects.get(pk=run.params["evacuation"])
            journal.change_params(evacuation, cleaned=True)
