"""Remove what a host has of a server that lives elsewhere, or is deleted: requested while the host was fenced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from compute.actions.evacuate import EvacuateParams
from compute.hosts import fenced
from compute.migration import moves
from compute.models import InstanceAction
from compute.operations import journal
from compute.operations.action import OPS, On, Role, ServerAction, StepContext, StepSpec
from compute.virt.base import GuestNotFound, NotSupported, PowerState, VirtError


class RemoveStaleGuest(ServerAction[fenced.CleanupParams]):
    """Opened by `fenced.schedule_cleanup`. It waits until the host is back and is tried until it is done.

    While it is queued it blocks no other step of the server.
    """

    name = "remove_stale_guest"
    role = Role.REMOVE_STALE_GUEST
    steps = (StepSpec("remove", "compute_remove_stale_guest", On.SOURCE, OPS),)

    def remove(self, run: StepContext[fenced.CleanupParams]) -> None:
        """Destroy the stale guest. A missing guest is success.

        A server whose home is this host again keeps its guest, or gets back what was migrated out of here. While an
        evacuation of it is open this raises VirtError and is retried: a guest that is taken back may start.
        """
        uuid, host = run.instance.uuid, run.params.source
        if not moves.lives_at(run, host):
            moves.destroy_stale(run, host)
            return
        if fenced.is_evacuated(uuid):
            raise VirtError(f"server {uuid} is being evacuated from host {host}")
        with suppress(GuestNotFound, NotSupported):
            run.hypervisor.revert_migration(run.instance.as_guest())

    def must_run(self, name: str) -> bool:
        """Return True: no other action removes the stale guest."""
        return True

    def after_failure(self, run: StepContext[fenced.CleanupParams], error: BaseException) -> StepSpec | None:
        """Return the same step again, with a new count of tries."""
        return self.steps[0]

    def record_step(self, run: StepContext[fenced.CleanupParams], power_state: PowerState | None) -> None:
        """Set `cleaned` in the params of the evacuation, if there was one: its status depends on that."""
        if run.params.evacuation is not None:
            evacuation = InstanceAction.objects.get(pk=run.params.evacuation)
            journal.change_params(evacuation, EvacuateParams, lambda params: replace(params, cleaned=True))
