"""A request for one server, and its result."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cloud.cli import errors
from cloud.cli.actions import CliAction
from cloud.cli.client import KnownServer


class Result(enum.StrEnum):
    """The progress of a request."""

    WAITING = "not asked"
    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


_CODES = {
    Result.FAILED: errors.FAILED, Result.REFUSED: errors.FAILED, Result.WAITING: errors.FAILED,
    Result.TIMED_OUT: errors.TIMED_OUT, Result.INTERRUPTED: errors.INTERRUPTED,
}  # fmt: skip
_WORST = (errors.INTERRUPTED, errors.FAILED, errors.TIMED_OUT)


@dataclass(slots=True)
class ServerState:
    """What was seen of a server at one time."""

    status: str = ""
    task: str = ""
    shutdown: dict[str, Any] = field(default_factory=dict)
    progress: int = 0
    away: str = ""  # why the server could not be read
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, server: dict[str, Any]) -> ServerState:
        """Return the state in the API's answer."""
        return cls(
            server.get("status", ""), server.get("OS-EXT-STS:task_state") or "", server.get("shutdown") or {},
            int(server.get("progress") or 0),
        )  # fmt: skip

    @property
    def left(self) -> float | None:
        """Seconds that are left of the guest's grace period; None when it is not shutting down."""
        if not self.shutdown or self.shutdown.get("outcome"):
            return None
        return max(0.0, float(self.shutdown.get("seconds_left") or 0) - (time.monotonic() - self.at))

    @property
    def share(self) -> float | None:
        """The share that is over, 0..1: of the grace period, else the progress of the server."""
        if self.left is None:
            return self.progress / 100 if self.task and self.progress else None
        try:
            begun, end = (datetime.fromisoformat(self.shutdown[key]) for key in ("begun", "deadline"))
        except (KeyError, TypeError, ValueError):
            return None
        whole = (end - begun).total_seconds()
        return 1 - min(1.0, self.left / whole) if whole > 0 else 1.0

    @property
    def words(self) -> str:
        """The state on one line, for people."""
        if self.away:
            return f"{self.away}; still trying"
        if self.left is not None:
            return f"guest is shutting down, {self.left:.0f} s left, {signals(self.shutdown)}"
        return ", ".join(word for word in (self.task or self.status, self.shutdown.get("outcome")) if word)

    @property
    def change(self) -> tuple[Any, ...]:
        """What must differ for a new line in a log: not the seconds."""
        told = tuple(self.shutdown.get(key) for key in ("begun", "deadline", "signals", "by", "outcome"))
        return (self.status, self.task, bool(self.away), *told)


@dataclass(slots=True)
class ServerRequest:
    """One server, and the action requested of it; without a verb it is only watched."""

    server: KnownServer
    verb: CliAction | None = None
    request_id: str = ""
    result: Result = Result.WAITING
    outcome: str = ""
    advice: str = ""
    password: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    look: ServerState = field(default_factory=ServerState)

    @property
    def title(self) -> str:
        """The name for people; the id when there is none."""
        return self.server.name or self.server.id

    @property
    def is_open(self) -> bool:
        """Whether to wait for it."""
        return self.result is Result.ACCEPTED

    @property
    def seconds(self) -> float:
        """The time from the request to its end, or until now."""
        return round((self.ended or time.monotonic()) - self.began, 1)

    def end(self, result: Result, outcome: str = "", advice: str = "") -> None:
        """Set the result; nothing more is waited for."""
        self.result, self.outcome, self.advice, self.ended = result, outcome, advice, time.monotonic()

    def row(self) -> dict[str, Any]:
        """Return the result for programs."""
        row = {
            "id": self.server.id, "name": self.server.name, "action": self.verb.name if self.verb else "",
            "result": self.result.value, "status": self.look.status, "seconds": self.seconds,
            "outcome": self.outcome, "request_id": self.request_id,
        }  # fmt: skip
        return row | ({"admin_password": self.password} if self.password else {})

    def sentence(self) -> str:
        """Return the result for people."""
        past = self.verb.past if self.verb else "idle"
        if self.result is Result.DONE:
            return f"{self.title}: {past} in {self.seconds:.1f} s" + (f": {self.outcome}" if self.outcome else "")
        if self.result is Result.ACCEPTED:
            return f"{self.title}: {self.verb.name if self.verb else ''} accepted, request {self.request_id}"
        return f"{self.title}: {self.result.value}" + (f": {self.outcome}" if self.outcome else "")


def signals(shutdown: dict[str, Any]) -> str:
    """Return `2 signals (acpi)`."""
    count, by = int(shutdown.get("signals") or 0), shutdown.get("by")
    return f"{count} signal{'' if count == 1 else 's'}" + (f" ({by})" if by else "")


def exit_code(orders: list[ServerRequest]) -> int:
    """Return the exit code of all requests: the worst."""
    codes = {_CODES.get(order.result, errors.DONE) for order in orders}
    return next((worst for worst in _WORST if worst in codes), errors.DONE)


def still_open(orders: list[ServerRequest]) -> Iterator[ServerRequest]:
    """Return the requests to wait for."""
    return (order for order in orders if order.is_open)
