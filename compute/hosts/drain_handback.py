"""The steps of a host that drains or starts: hand back, mark as unfinished, send again. In the targeted cell."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q

from compute.models import Step
from compute.operations import dispatch, registry, runner

BATCH = 500


def hand_back(host: str) -> int:
    """Cancel or redirect the queued requests of a draining host whose step declares it; return how many left.

    Only steps never begun (`OnDrain` ELSEWHERE or CANCEL), at most BATCH.
    """
    queued = Step.objects.select_related("action").filter(
        host=host, state=Step.State.QUEUED, queue=dispatch.REQUESTS, attempts=0
    )
    moved = 0
    for step in queued.order_by("queued_at", "pk")[:BATCH]:
        action = registry.every().get(step.action.key)
        if action is not None:
            moved += runner.hand_back(action, step)
    return moved


def mark_unfinished(steps: Collection[int], why: str) -> int:
    """Record in the journal why each step stopped and what the next start does with it; return how many were marked."""
    marked = 0
    cut_off = Step.objects.select_related("action").filter(pk__in=list(steps), state=Step.State.RUNNING)
    for step in cut_off:
        action = registry.every().get(step.action.key)
        spec = action.find(step.name) if action is not None else None
        then = spec.on_restart.meaning if spec is not None else "it waits for a version that knows it"
        details = f"{why}; when the service starts again: {then}"
        mine = Step.objects.filter(pk=step.pk, state=Step.State.RUNNING, token=step.token)
        marked += mine.update(details=details)
    return marked


def send_again(host: str) -> int:
    """Send the messages of a host's queued steps again, e.g. at its start; return how many. A duplicate is harmless."""
    queued = Step.objects.filter(state=Step.State.QUEUED, host=host)
    return len(dispatch.send(queued.order_by("queued_at", "pk")[:BATCH]))


def send_next(host: str, room: int) -> int:
    """Send the oldest requests that a host can begin now, at most `room`; return how many there were."""
    return _send_oldest(Q(host=host, queue=dispatch.REQUESTS), room)


def send_next_long(host: str, room: int) -> int:
    """As `send_next()`, for the long steps of the host's ops queue."""
    keys, names = registry.long_steps()
    return _send_oldest(Q(host=host, queue=dispatch.OPS, action__key__in=keys, name__in=names), room)


def _send_oldest(which: Q, room: int) -> int:
    busy = Step.objects.filter(server_id=OuterRef("server_id"), state=Step.State.RUNNING)
    waiting = Step.objects.due(which, ~Exists(busy))
    steps = list(waiting.order_by("queued_at", "pk")[:room])
    dispatch.send(steps)
    return len(steps)
