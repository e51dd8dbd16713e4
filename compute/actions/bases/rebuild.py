"""What Rebuild and Evacuate have in common: the guest is built anew; the server keeps its id and its size."""

from __future__ import annotations

from compute.models import InstanceAction
from compute.operations import registry
from compute.operations.action import StepContext
from compute.state import Move, TaskState, VmState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.ERROR})


def move(*, on: bool, failed: VmState | None = None, then: TaskState | None = None) -> Move:
    """Return the move to ACTIVE (`on`) or to STOPPED."""
    return Move(FROM, TaskState.REBUILDING, VmState.ACTIVE if on else VmState.STOPPED, failed, then=then)


def was_taken(run: StepContext) -> bool:
    """Return whether a newer rebuild or evacuation has the server, which then has the same task_state."""
    keys = registry.keys(lambda action: action.move is not None and action.move.busy is TaskState.REBUILDING)
    newer = InstanceAction.objects.filter(server_id=run.instance.uuid, key__in=keys, pk__gt=run.action.pk)
    return newer.filter(finished_at__isnull=True).exists()
