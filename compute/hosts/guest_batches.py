"""Whose turn it is among the guests of a host that goes down or comes back: by rank, so many at a time.

Rows decide, under the lock of the host's service record. So it does not matter who dies when.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction
from django.db.models import QuerySet

from cells.context import current_alias
from compute.models import InstanceAction, Service, Step
from compute.models.host import COMPUTE
from compute.operations import journal
from compute.operations.step import StepWaiting

WAITS = "waits for its turn"
AGAIN = 30.0  # seconds until a step looks by itself whether it is its turn


@contextmanager
def lock(host: str) -> Iterator[None]:
    """One at a time decides for a host. A transaction, or part of one."""
    with transaction.atomic(using=current_alias()):
        list(Service.objects.select_for_update().filter(binary=COMPUTE, host=host).values_list("pk"))
        yield


def open_steps(host: str, key: str) -> QuerySet[Step]:
    """All that have not ended."""
    return Step.objects.filter(host=host, action__key=key, state__in=journal.OPEN)


def has_come(step: Step, action: InstanceAction) -> bool:
    """Whether those of a lower rank have ended, and there is room among those that have begun. Under the lock."""
    others = open_steps(step.host, action.key).exclude(pk=step.pk)
    if others.filter(action__params__rank__lt=action.params["rank"]).exists():
        return False
    return others.filter(action__params__begun=True).count() < action.params["at_once"]


def wait(step: Step, why: str, seconds: float) -> StepWaiting:
    """Park it under the lock that said so: whoever ends from now on wakes it."""
    journal.wait_step(step, why, seconds=seconds)
    return StepWaiting(why, parked=True)


def wake(host: str, key: str) -> None:
    """One has ended: wake those that may begin now. They ask for themselves. In the transaction that ends it."""
    with lock(host):
        steps = open_steps(host, key)
        first = steps.select_related("action").order_by("action__params__rank", "pk").first()
        if first is None:
            return
        params = first.action.params
        room = params["at_once"] - steps.filter(action__params__begun=True).count()
        waiting = steps.filter(state=Step.State.WAITING, details=WAITS, action__params__rank=params["rank"])
        for step in waiting.order_by("pk")[: max(0, room)]:
            journal.resume_step(step)
