"""A request for one server, and its result."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cloud.cli import errors
from cloud.cli.actions import CliAction
from cloud.cli.client import KnownServer
from cloud.words import counted


class Result(enum.StrEnum):
    """The progress of a request."""

    WAITING = "not asked"
    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


_WORST_FIRST = {
    Result.INTERRUPTED: errors.INTERRUPTED, Result.FAILED: errors.FAILED, Result.REFUSED: errors.FAILED,
    Result.WAITING: errors.FAILED, Result.TIMED_OUT: errors.TIMED_OUT,
}  # fmt: skip


@dataclass(slots=True)
class ServerState:
    """What was read of a server at one time."""

    status: str = ""
    task: str = ""
    shutdown: dict[str, Any] = field(default_factory=dict)
    progress: int = 0
    unreachable: str = ""  # why the server could not be read
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def from_api(cls, server: dict[str, Any]) -> ServerState:
        """Return the state in the API's response."""
        return cls(
            server.get("status", ""), server.get("OS-EXT-STS:task_state") or "", server.get("shutdown") or {},
            int(server.get("progress") or 0),
        )  # fmt: skip

    @property
    def seconds_left(self) -> float | None:
        """Seconds that are left of the guest's grace period; None when it is not shutting down."""
        if not self.shutdown or self.shutdown.get("outcome"):
            return None
        return max(0.0, float(self.shutdown.get("seconds_left") or 0) - (time.monotonic() - self.at))

    @property
    def share(self) -> float | None:
        """The share that is over, 0..1: of the grace period, else the progress of the server."""
        if self.seconds_left is None:
            return self.progress / 100 if self.task and self.progress else None
        try:
            begun, end = (datetime.fromisoformat(self.shutdown[key]) for key in ("begun", "deadline"))
        except (KeyError, TypeError, ValueError):
            return None
        period = (end - begun).total_seconds()
        return 1 - min(1.0, self.seconds_left / period) if period > 0 else 1.0

    @property
    def text(self) -> str:
        """The state on one line, for people."""
        if self.unreachable:
            return f"{self.unreachable}; still trying"
        if self.seconds_left is not None:
            return f"guest is shutting down, {self.seconds_left:.0f} s left, {format_signals(self.shutdown)}"
        return ", ".join(text for text in (self.task or self.status, self.shutdown.get("outcome")) if text)

    @property
    def change(self) -> tuple[Any, ...]:
        """What must differ for a new line in a log: not the seconds."""
        shutdown = (self.shutdown.get(key) for key in ("begun", "deadline", "signals", "by", "outcome"))
        return (self.status, self.task, bool(self.unreachable), *shutdown)


@dataclass(slots=True)
class ServerRequest:
    """One server, and the action requested of it; without an action it is only watched."""

    server: KnownServer
    action: CliAction | None = None
    request_id: str = ""
    result: Result = Result.WAITING
    outcome: str = ""
    advice: str = ""
    password: str = ""
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None
    state: ServerState = field(default_factory=ServerState)

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

    def to_row(self) -> dict[str, Any]:
        """Return the result for programs."""
        row = {
            "id": self.server.id, "name": self.server.name, "action": self.action.name if self.action else "",
            "result": self.result.value, "status": self.state.status, "seconds": self.seconds,
            "outcome": self.outcome, "request_id": self.request_id,
        }  # fmt: skip
        return row | ({"admin_password": self.password} if self.password else {})

    def sentence(self) -> str:
        """Return the result for people."""
        if self.result is Result.ACCEPTED:
            return f"{self.title}: {self.action.name if self.action else ''} accepted, request {self.request_id}"
        text = self.result.value
        if self.result is Result.DONE:
            text = f"{self.action.past if self.action else 'idle'} in {self.seconds:.1f} s"
        return f"{self.title}: {text}" + (f": {self.outcome}" if self.outcome else "")


def format_signals(shutdown: dict[str, Any]) -> str:
    """Return `2 signals (acpi)`."""
    by = shutdown.get("by")
    return counted(int(shutdown.get("signals") or 0), "signal") + (f" ({by})" if by else "")


def worst_exit_code(requests: list[ServerRequest]) -> int:
    """Return the exit code of all requests: that of the worst result."""
    results = {request.result for request in requests}
    return next((code for result, code in _WORST_FIRST.items() if result in results), errors.DONE)
