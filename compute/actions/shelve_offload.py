"""Remove a shelved server from its host: only its image is left."""

from __future__ import annotations

from compute import state
from compute.actions.bases import shelve
from compute.hosts import fenced
from compute.models import Instance, InstanceAction
from compute.operations import journal
from compute.operations.action import ActionParams, ActionRequest, StepSpec
from compute.state import Move, TaskState, VmState


class ShelveOffload(shelve.Offloads[ActionParams]):
    """Shelved -> shelved and offloaded. The conductor submits it, too, periodically and without a user id."""

    key = name = "shelveOffload"
    policy = "os_compute_api:os-shelve:shelve_offload"
    move = Move(frozenset({VmState.SHELVED}), TaskState.SHELVING_OFFLOADING, VmState.SHELVED_OFFLOADED)
    steps = (StepSpec("offload", "compute_shelve_offload_instance", no_return=True),)

    def record(self, instance: Instance, asked: ActionRequest, params: ActionParams) -> InstanceAction:
        """Journal the action; offload here and now when the host is fenced: only the image is needed."""
        host = instance.host
        if host not in fenced.hosts():
            return super().record(instance, asked, params)
        action = self.open_row(instance, asked, params)
        shelve.leave_host(instance)
        state.finish(instance, self.move)
        fenced.schedule_cleanup(instance, host)
        then = f"{host}, which is gone, removes what it has when it is back"
        journal.close_action(action, outcome=f"offloaded; {then}")
        return action
