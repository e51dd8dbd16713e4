"""What a rebuild and an evacuation have in common: a server is built anew, and keeps its id and its size."""

from __future__ import annotations

from compute.models import InstanceAction
from compute.operations.action import StepContext
from compute.state import Move, TaskState, VmState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.ERROR})
KEYS = ("Rebuild", "Evacuate")


def move(*, on: bool, failed: VmState | None = None, then: TaskState | None = None) -> Move:
    """To a server that runs, or to one that is off."""
    return Move(FROM, TaskState.REBUILDING, VmState.ACTIVE if on else VmState.STOPPED, failed, then=then)


def was_taken(run: StepContext) -> bool:
    """Whether a newer one of these has the server now: its task looks the same, and is not this action's."""
    newer = InstanceAction.objects.filter(server_id=run.instance.uuid, key__in=KEYS, pk__gt=run.action.pk)
    return newer.filter(finished_at__isnull=True).exists()
