"""The shutdown timer: the clock of a guest that was asked to shut down. One per guest, stored with it. Plain data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from math import floor
from pathlib import Path
from typing import Any

ENDED = {"crashed": "guest crashed after", "gone": "guest was gone after", "left": "given up after"}
CUT_SHORT = "cut short by a request"  # the `why` of a timer that was ended before its deadline
SOON = 1e-3  # seconds: tolerance for floats that are meant to be equal
FAR = 1e11  # largest Unix time that is taken for a date
LATE = 2.0  # seconds after the deadline: a guest that is off later was found off, its end was not observed
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ShutdownTimer:
    """One grace period. Times are Unix times in seconds; `ended` is 0 while the timer runs.

    `how` it ended, or is about to end: "guest" (it shut itself down), "forced", "crashed", "gone", or "left" (the
    shutdown was given up). `why`: the reason of a power cut before the deadline.
    """

    begun: float
    deadline: float
    interval: float
    signals: int = 0
    signalled: float = 0.0  # time of the last signal
    by: str = ""  # how it was signalled: acpi, agent, or "agent, acpi"
    ended: float = 0.0
    how: str = ""
    why: str = ""
    boot: str = ""  # boot id of the host: during this boot the time is `offset` + the monotonic clock
    offset: float = 0.0

    @classmethod
    def start(cls, now: float, timeout: float, interval: float) -> ShutdownTimer:
        """Return a timer of `timeout` seconds that begins now; the interval is at least 0.05 seconds."""
        return cls(now, now + timeout, max(0.05, interval), boot=_boot_id(), offset=now - time.monotonic())

    @classmethod
    def load(cls, kept: str | dict[str, Any] | None) -> ShutdownTimer | None:
        """Read what `text` or `facts` gave, also of a newer version with more fields; None for anything unreadable."""
        try:
            facts = json.loads(kept) if isinstance(kept, str) and kept else kept
            if not isinstance(facts, dict):
                return None
            known = (field for field in fields(cls) if field.name in facts)
            return cls(**{field.name: _READ[field.type](facts[field.name]) for field in known})
        except (ValueError, TypeError, OverflowError):
            return None

    @property
    def facts(self) -> dict[str, Any]:
        """The timer as a dict for a JSON column."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The timer as JSON text, for a hypervisor that stores text."""
        return json.dumps(self.facts, separators=(",", ":"))

    @property
    def runs(self) -> bool:
        """Whether the timer has not ended."""
        return not self.ended

    @property
    def cause(self) -> str:
        """The cause of a power cut: deadline, cut_short, paused (cannot react), hard (no grace period)."""
        if self.why:
            return "paused" if self.why.startswith("it was ") else "cut_short"
        return "deadline" if self.deadline > self.begun else "hard"

    def now(self) -> float:
        """Return the present time by the clock as it was set when this timer began.

        A later change of the system clock neither lengthens nor shortens the grace period. All processes of the host
        agree, also those started later: the monotonic clock counts from the host's boot. After a reboot of the host it
        is the system clock.
        """
        return time.monotonic() + self.offset if self.boot and self.boot == _boot_id() else time.time()

    @property
    def next_signal(self) -> float:
        """The time of the next signal: a whole number of intervals after the start, however late the last was."""
        if not self.signalled:
            return self.begun
        passed = floor((self.signalled - self.begun + SOON) / self.interval)
        return self.begun + self.interval * (passed + 1)

    @property
    def due(self) -> float:
        """The time of the next action: a signal or the deadline."""
        return min(self.next_signal, self.deadline)

    @property
    def wait(self) -> float:
        """Seconds from now until the next action; 0 when it is overdue."""
        return max(0.0, self.due - self.now())

    def signal(self, now: float, by: str) -> ShutdownTimer:
        """Return the timer with one more signal, sent by way of `by`."""
        ways = [way for way in self.by.split(", ") if way]
        both = ", ".join(ways if by in ways else [*ways, by])
        return replace(self, signals=self.signals + 1, signalled=now, by=both)

    def forcing(self, why: str = "") -> ShutdownTimer:
        """Return the timer as stored before the power cut, so that a process that finds the guest off knows why."""
        return replace(self, how="forced", why=why)

    def end(self, now: float, how: str = "") -> ShutdownTimer:
        """Return the ended timer: the guest is off. `how` overrides what was recorded before, if it is known."""
        how = how or self.how or "guest"
        why = self.why if how == self.how else "its power was cut" if how == "forced" else ""
        return replace(self, ended=now, how=how, why=why)

    def left(self, now: float) -> float:
        """Return the seconds until the power cut; 0 for a timer that has ended."""
        return max(0.0, self.deadline - now) if self.runs else 0.0

    def words(self) -> str:
        """Describe for people how the shutdown ended, or how it is going."""
        signals = f"{self.signals} signal{'' if self.signals == 1 else 's'}" + (f" ({self.by})" if self.by else "")
        took = self.ended - self.begun
        if self.runs:
            until = datetime.fromtimestamp(self.deadline, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return f"{signals}; forced off at {until} unless it shuts down"
        if self.how == "forced":
            why = f": {self.why}" if self.why else ""
            if not self.signalled:
                return f"forced off at once{why}"
            return f"forced off after {took:.0f} s{why}, {signals}"
        found = "guest was found off after" if self.ended > self.deadline + LATE else "guest shut down in"
        return f"{ENDED.get(self.how, found)} {took:.1f} s, {signals}"


def _number(value: Any) -> float:
    number = float(value)
    if not -FAR < number < FAR:  # also refuses the NaN and Infinity that JSON may contain
        raise ValueError(value)
    return number


_READ: dict[object, Callable[[Any], Any]] = {"float": _number, "int": int, "str": str}


@cache
def _boot_id() -> str:
    """Return the kernel's id of the host's present boot, or "" if it cannot be read."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
