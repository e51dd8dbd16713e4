"""Calls to a host that an API request waits for: a row, an answer in the row, a deadline (ADR 0012)."""

from __future__ import annotations

from typing import Any

import tenacity
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from cells import database_clock, scatter
from cells.context import current_alias
from cells.models import Cell
from compute.errors import CellDown, HostUnreachable, ServerNotReady
from compute.models import HostCall, Instance, Service
from compute.operations import dispatch

DEADLINE, KEPT = 8.0, 600.0  # seconds


def send(instance: Instance, method: str, params: dict[str, Any]) -> HostCall:
    """Call the server's host; `wait` returns its answer. Raises ServerNotReady, HostUnreachable (the host is down)."""
    if not instance.host:
        raise ServerNotReady(instance.uuid)
    service = Service.objects.of_host(instance.host)
    if service is None or not service.is_up:
        raise HostUnreachable(f"The host of instance {instance.uuid} does not answer now. Try again later.")
    with transaction.atomic(using=current_alias()):
        call = HostCall.objects.create(
            host=instance.host, server_id=instance.uuid, method=method, params=params,
            expires_at=database_clock.now(DEADLINE),
        )  # fmt: skip
        dispatch.call(call)
    return call


def wait(call: HostCall) -> Any:
    """Return the host's answer. Raises HostUnreachable (no answer, or the host reports an error), CellDown.

    Do not call it inside `scatter.target_for_write`, which takes a long wait for a cell that hangs. Each poll has the
    deadline of every other query to the cell, and only a poll can find the cell down.
    """
    cell = Cell.objects.get(pk=str(call._state.db).removeprefix("cell:"))
    answered = tenacity.Retrying(
        retry=tenacity.retry_if_result(_is_open), wait=tenacity.wait_exponential(0.01, 0.2, exp_base=1.5),
        stop=tenacity.stop_after_delay(DEADLINE), retry_error_callback=lambda _: None,
    )(scatter.ask_one, cell, lambda _: _take(call))  # fmt: skip
    if answered is None:
        raise HostUnreachable(f"The host of instance {call.server_id} did not answer within {DEADLINE:.0f} s.")
    if not isinstance(answered, HostCall):
        raise CellDown(cell.name)
    if answered.error:
        raise HostUnreachable(answered.error)
    return answered.answer


def _is_open(answered: HostCall | scatter.CellFailure | None) -> bool:
    return answered is None or (not isinstance(answered, HostCall) and answered.reason == scatter.BUSY)


def _take(call: HostCall) -> HostCall | None:
    answered = HostCall.objects.filter(pk=call.pk, answered_at__isnull=False).first()
    if answered is not None:
        HostCall.objects.filter(pk=call.pk).delete()
    return answered


def claim(call_id: str) -> HostCall | None:
    """Host side: claim the call, once; None when another process has it or its deadline has passed."""
    over = database_clock.is_over("expires_at", DEADLINE)
    free = HostCall.objects.exclude(over).filter(pk=call_id, claimed_at__isnull=True)
    won = free.update(claimed_at=database_clock.now())
    return HostCall.objects.get(pk=call_id) if won else None


def answer(call: HostCall, value: Any = None, error: str = "") -> None:
    """Host side: write the answer into the row that the API polls."""
    HostCall.objects.filter(pk=call.pk).update(answer=value, error=error[:255], answered_at=timezone.now())


def sweep() -> int:
    """Delete the calls that no API request can wait for any more; return how many there were."""
    old = Q(expires_at__lt=database_clock.now(-KEPT)) | Q(expires_at__gt=database_clock.now(KEPT))
    return HostCall.objects.filter(old).delete()[0]
