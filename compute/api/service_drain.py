"""Draining in os-services: our own key, beside Nova's and only while there is something to say."""

from __future__ import annotations

from typing import Any

from cells.context import target_cell
from cloud.errors import Conflict
from compute import draining
from compute.api.wire import closed, moment
from compute.fleet import Placed
from compute.models import Service

KEY = "stillwater:drain"
_SECONDS = {"type": "number", "minimum": 0, "maximum": 366 * 86400}  # 0: as long as it takes
SCHEMA = {
    **closed({
        "reason": {"type": "string", "minLength": 1, "maxLength": 255},
        "timeout": _SECONDS,
        "exit": {"type": "boolean"},
        "extend": _SECONDS,
    }),
    "type": ["object", "null"],  # null: take work again
    "dependentSchemas": {"extend": {"maxProperties": 1}},
}  # fmt: skip


def carry_out(one: Placed, wanted: dict[str, Any] | None, by: str) -> None:
    """Drain, give more time, or take work again. Raises Conflict where that makes no sense."""
    service = one.service
    if wanted is not None and not service.is_up:
        raise Conflict(f"Service {service} is down: there is nobody to drain.")
    if wanted is not None and "extend" in wanted and not service.drain_state:
        raise Conflict(f"Service {service} is not draining: there is no deadline to move.")
    with target_cell(one.cell):
        if wanted is None:
            draining.undo(service)
        elif "extend" in wanted:
            draining.extend(service, wanted["extend"])
        else:
            draining.ask(
                service, by=by, reason=wanted.get("reason", ""), seconds=wanted.get("timeout"),
                then_exit=wanted.get("exit", False),
            )  # fmt: skip


def as_json(one: Placed) -> dict[str, Any]:
    """The key and its value; nothing for a service that takes new work, so its record is Nova's to the letter."""
    service = one.service
    if not service.drain_state:
        return {}
    return {KEY: {
        "state": service.drain_state,
        "since": moment(service.draining_since or service.drain_asked_at),
        "drained_at": moment(service.drained_at),
        "by": service.drain_by or None,
        "reason": service.drain_reason or None,
        "deadline": moment(service.drain_deadline),
        "exit": service.drain_then_exit,
        "in_progress": service.in_progress,
        "waiting": one.waiting,
    }}  # fmt: skip


def reason(service: Service) -> str | None:
    """Nova's `disabled_reason`; of an enabled service, where Nova has none, why it takes no work all the same."""
    if service.disabled or not service.drain_state:
        return service.disabled_reason
    since = service.drained_at or service.draining_since or service.drain_asked_at
    by = f" by {service.drain_by}" if service.drain_by else ""
    why = f": {service.drain_reason}" if service.drain_reason else ""
    return f"{service.drain_state} since {moment(since)}{by}{why}"[:255]
