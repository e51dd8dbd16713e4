"""Draining in os-services: the key `stillwater:drain`, shown beside Nova's keys while a service drains or returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cloud.errors import BadRequest, Conflict
from compute.api.fields import moment, object_schema
from compute.hosts import drain, drain_moves
from compute.hosts.drain_moves import AT_ONCE, DrainMove, DrainMoves
from compute.hosts.services import ServiceRecord
from compute.models import Service
from compute.models.host import COMPUTE
from compute.servers import lookup

KEY = "stillwater:drain"
_PARALLEL = {"type": "integer", "minimum": 1, "maximum": 1000}  # migrations at a time
_MOVES = object_schema({"parallel": _PARALLEL})
MOST = 100  # blockers listed
_SECONDS = {"type": "number", "minimum": 0, "maximum": 366 * 86400}  # 0: no deadline
SCHEMA = {
    **object_schema({
        "reason": {"type": "string", "minLength": 1, "maxLength": 255},
        "timeout": _SECONDS,
        "exit": {"type": "boolean"},
        "extend": _SECONDS,
        "migrate": _MOVES,  # drain migrations come first
        "return": _MOVES,  # undrain, and bring its servers back
    }),
    "type": ["object", "null"],  # null: undrain
    "dependentSchemas": {"extend": {"maxProperties": 1}, "return": {"maxProperties": 1}},
}  # fmt: skip


def carry_out(one: ServiceRecord, wanted: dict[str, Any] | None, by: str) -> ServiceRecord:
    """Drain a service, extend its deadline, or undrain it; return its record as it is then.

    `wanted` is the value of the key; None undrains. `by` names the caller for the record.
    Raises Conflict when the service's state does not allow it, BadRequest, CellDown.
    """
    service = one.service
    if wanted is not None and not service.is_up:
        raise Conflict(f"Service {service} is down; it cannot be drained.")
    if wanted is not None and "extend" in wanted and not service.drain_state:
        raise Conflict(f"Service {service} is not draining: there is no deadline to move.")
    if wanted is not None and {"migrate", "return"} & set(wanted) and service.binary != COMPUTE:
        raise BadRequest(f"Service {service} has no servers that could move.")
    left_alone: Sequence[DrainMove] = ()
    with lookup.targeted_cell(one.cell):
        if wanted is None:
            drain.withdraw(service)
        elif "return" in wanted:
            left_alone = drain.withdraw(service, bring_back=_parallel(wanted["return"]))
        elif "extend" in wanted:
            drain.extend(service, wanted["extend"])
        else:
            drain.request(
                service, by=by, reason=wanted.get("reason", ""), seconds=wanted.get("timeout"),
                then_exit=wanted.get("exit", False),
                moves=_parallel(wanted["migrate"]) if "migrate" in wanted else 0,
            )  # fmt: skip
        moves = drain_moves.read(service.host) if service.drain_moves else DrainMoves()
    return replace(one, moves=replace(moves, left_alone=tuple(left_alone)))


def as_json(one: ServiceRecord) -> dict[str, Any]:
    """Return the key and its value; nothing for a service that takes new work, so its record is exactly Nova's."""
    service = one.service
    if service.is_returning and not service.drain_state:
        left_alone = [{"server": line.server_id, "host": line.at} for line in one.moves.left_alone]
        return {KEY: {"state": "returning", "return": _moves(one) | {"left_alone": left_alone}}}
    if not service.drain_state:
        return {}
    moves = {"migrate": _moves(one)} if service.drain_moves else {}
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
        **moves,
    }}  # fmt: skip


def reason(service: Service) -> str | None:
    """Return Nova's `disabled_reason`; for an enabled service that drains, a sentence about the drain."""
    if service.disabled or not service.drain_state:
        return service.disabled_reason
    since = service.drained_at or service.draining_since or service.drain_asked_at
    by = f" by {service.drain_by}" if service.drain_by else ""
    why = f": {service.drain_reason}" if service.drain_reason else ""
    return f"{service.drain_state} since {moment(since)}{by}{why}"[:255]


def _parallel(moves: dict[str, Any]) -> int:
    return int(moves.get("parallel", AT_ONCE))


def _moves(one: ServiceRecord) -> dict[str, Any]:
    """Return the progress of the drain migrations, and the blocked servers."""
    found = one.moves
    return {
        "parallel": one.service.drain_moves, "total": len(found.lines), "away": len(found.away),
        "moving": [{"server": line.server_id, "from": line.at, "to": line.to or None, "progress": line.percent}
                   for line in found.under_way],
        "blocked": len(found.blocked),
        "blockers": [{"server": line.server_id, "why": line.why} for line in found.blocked[:MOST]],
    }  # fmt: skip
