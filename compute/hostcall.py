"""Asking a host something while an API request waits: a row, an answer in the row, a deadline."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from cells.context import current_alias
from compute import dispatch
from compute.errors import HostUnreachable, ServerNotReady
from compute.models import HostCall, Instance, Service
from compute.models.host import COMPUTE

DEADLINE = 10.0  # seconds


def ask(instance: Instance, method: str, params: dict[str, Any]) -> Any:
    """The host's answer. Raises ServerNotReady, HostUnreachable (down, silent, or it could not)."""
    if not instance.host:
        raise ServerNotReady(instance.uuid)
    service = Service.objects.filter(binary=COMPUTE, host=instance.host).first()
    if service is None or not service.is_up:
        raise HostUnreachable(f"The host of instance {instance.uuid} does not answer now. Try again later.")
    with transaction.atomic(using=current_alias()):
        call = HostCall.objects.create(
            host=instance.host, server_id=instance.uuid, method=method, params=params,
            expires_at=timezone.now() + timedelta(seconds=DEADLINE),
        )  # fmt: skip
        dispatch.call(call)
    return _wait(call)


def claim(call_id: str) -> HostCall | None:
    """Host side: take the call, once; None when somebody has it or nobody waits any more."""
    now = timezone.now()
    won = HostCall.objects.filter(pk=call_id, claimed_at__isnull=True, expires_at__gt=now).update(claimed_at=now)
    return HostCall.objects.get(pk=call_id) if won else None


def answer(call: HostCall, value: Any = None, error: str = "") -> None:
    """Host side: put the answer where the API waits for it."""
    HostCall.objects.filter(pk=call.pk).update(answer=value, error=error[:255], answered_at=timezone.now())


def _wait(call: HostCall) -> Any:
    end, pause = time.monotonic() + DEADLINE, 0.01
    while time.monotonic() < end:
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)
        call.refresh_from_db()
        if call.answered_at is not None:
            call.delete()
            if call.error:
                raise HostUnreachable(call.error)
            return call.answer
    raise HostUnreachable(f"The host of instance {call.server_id} did not answer within {DEADLINE:.0f} s.")
