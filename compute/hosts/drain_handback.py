"""What becomes of a host's work when the host drains: given back, marked, sent again. In the targeted cell."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q

from compute.models import Step
from compute.operations import dispatch, journal, registry, runner

BATCH = 500


def hand_back(host: str) -> int:
    """Requests nobody has begun that declare so need not wait for the host; how many left it."""
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
    """Say in the journal why a step stopped and what the next start does with it; how many."""
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
    """Send every queued step of a host again, e.g. when it starts; how many went out. One too many does no harm."""
    queued = Step.objects.filter(state=Step.State.QUEUED, host=host)
    return len(dispatch.send(queued.order_by("queued_at", "pk")[:BATCH]))


def send_next(host: str, room: int) -> int:
    """Send the oldest requests a host can begin now, as many as it has room for; how many there were."""
    return _send_oldest(Q(host=host, queue=dispatch.REQUESTS), room)


def send_next_long(host: str, room: int) -> int:
    """As `send_next`, of the long operations of its ops lane."""
    keys, names = registry.long_steps()
    return _send_oldest(Q(host=host, queue=dispatch.OPS, action__key__in=keys, name__in=names), room)


def _send_oldest(which: Q, room: int) -> int:
    busy = Step.objects.filter(server_id=OuterRef("server_id"), state=Step.State.RUNNING)
    waiting = Step.objects.filter(which, journal.is_due(), ~Exists(busy), state=Step.State.QUEUED)
    steps = list(waiting.order_by("queued_at", "pk")[:room])
    dispatch.send(steps)
    return len(steps)
