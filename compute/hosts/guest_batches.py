"""The order in which the guests of a host are shut down or started: by rank, a limited number at a time.

Decided by rows, under the lock of the host's service record; so any process may die at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from cells.context import current_alias
from compute.models import InstanceAction, Service, Step
from compute.operations import journal
from compute.operations.params import ActionParams
from compute.operations.step import StepWaiting

WAITS = "waits for its turn"
AGAIN = 30.0  # seconds until a waiting step checks its turn without being woken


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchParams(ActionParams):
    """The parameters of an action that shuts one guest of a host down, or starts it, in its turn."""

    rank: int  # guests of lower rank come first
    at_once: int  # so many at the same time
    begun: bool = False  # the guest's turn has come
    stays: bool = False  # the vm_state of its server stays as it is


@contextmanager
def lock(host: str) -> Iterator[None]:
    """Lock the host's service record, so that one process at a time decides. Opens a transaction or a savepoint."""
    with transaction.atomic(using=current_alias()):
        list(Service.objects.select_for_update().computes(host=host).values_list("pk"))
        yield


def open_steps(host: str, key: str) -> QuerySet[Step]:
    """Return the open steps of a host for one action key."""
    return Step.objects.open(host=host, action__key=key)


def is_turn(step: Step, action: InstanceAction) -> bool:
    """Whether all guests of lower rank have ended and fewer than `at_once` have begun. Call it under `lock()`."""
    others, params = open_steps(step.host, action.key).exclude(pk=step.pk), BatchParams.load(action.params)
    if others.filter(action__params__rank__lt=params.rank).exists():
        return False
    return others.filter(action__params__begun=True).count() < params.at_once


def wait(step: Step, why: str, seconds: float) -> StepWaiting:
    """Let the step wait, under the same `lock()` as `has_come()`: a guest that ends later then wakes it."""
    journal.wait_step(step, why, seconds=seconds)
    return StepWaiting(why, recorded=True)


def wake(host: str, key: str) -> None:
    """Wake the waiting steps that may begin now; each checks its turn itself with `has_come()`.

    Call it in the transaction that ends a guest's step.
    """
    with lock(host):
        steps = open_steps(host, key)
        first = steps.select_related("action").order_by("action__params__rank", "pk").first()
        if first is None:
            return
        params = BatchParams.load(first.action.params)
        room = params.at_once - steps.filter(action__params__begun=True).count()
        waiting = steps.filter(state=Step.State.WAITING, details=WAITS, action__params__rank=params.rank)
        for step in waiting.order_by("pk")[: max(0, room)]:
            journal.resume_step(step)
