"""The clock of a guest that was asked to shut down: one per guest, kept with it, whoever asks. Plain data."""

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
HURRY = "somebody could not wait"  # why a clock was ended before its deadline
SOON = 1e-3  # seconds: floats that are meant to be equal are no further apart
FAR = 1e11  # seconds since 1970: beyond that is no date
LATE = 2.0  # seconds after the deadline a guest that shut itself down was merely found off
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ShutdownTimer:
    """One grace period. Times are seconds since 1970; `ended` 0 is one that runs.

    `how` it ended, or is about to: guest (it shut itself down), forced, crashed, gone, left (alone: nobody wants it
    off any more); `why` it was forced off before its deadline.
    """

    begun: float
    deadline: float
    interval: float
    signals: int = 0
    signalled: float = 0.0  # the last time
    by: str = ""  # how it was signalled: acpi, agent, or "agent, acpi"
    ended: float = 0.0
    how: str = ""
    why: str = ""
    boot: str = ""  # of the host: since then `offset` + its monotonic clock is the time
    offset: float = 0.0

    @classmethod
    def start(cls, now: float, timeout: float, interval: float) -> ShutdownTimer:
        """A grace period of `timeout` seconds that begins now."""
        return cls(now, now + timeout, max(0.05, interval), boot=_boot_id(), offset=now - time.monotonic())

    @classmethod
    def load(cls, kept: str | dict[str, Any] | None) -> ShutdownTimer | None:
        """What `text` or `facts` gave, also those of a newer version; None for what nobody can read."""
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
        """For a row of JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """For a hypervisor that keeps text."""
        return json.dumps(self.facts, separators=(",", ":"))

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self.ended

    @property
    def cause(self) -> str:
        """Why one was forced off, in a word: deadline, hurry (somebody cut it), paused (it could not hear), hard."""
        if self.why:
            return "paused" if self.why.startswith("it was ") else "hurry"
        return "deadline" if self.deadline > self.begun else "hard"

    def now(self) -> float:
        """The time, as it was set when this clock began: somebody who sets it anew gives or takes no grace.

        Every process of the host agrees on it, also one that was started later.
        """
        return time.monotonic() + self.offset if self.boot and self.boot == _boot_id() else time.time()

    @property
    def next_signal(self) -> float:
        """At a whole number of intervals after the first one, however late the last one was."""
        if not self.signalled:
            return self.begun
        passed = floor((self.signalled - self.begun + SOON) / self.interval)
        return self.begun + self.interval * (passed + 1)

    @property
    def due(self) -> float:
        """When something is to be done next."""
        return min(self.next_signal, self.deadline)

    @property
    def wait(self) -> float:
        """Seconds from now until something is to be done."""
        return max(0.0, self.due - self.now())

    def signal(self, now: float, by: str) -> ShutdownTimer:
        """It was signalled once more."""
        ways = [way for way in self.by.split(", ") if way]
        both = ", ".join(ways if by in ways else [*ways, by])
        return replace(self, signals=self.signals + 1, signalled=now, by=both)

    def forcing(self, why: str = "") -> ShutdownTimer:
        """The plug is about to be pulled: said before, so that whoever finds the guest off knows."""
        return replace(self, how="forced", why=why)

    def end(self, now: float, how: str = "") -> ShutdownTimer:
        """The guest is off; `how`, if that is known better than it was said before."""
        how = how or self.how or "guest"
        why = self.why if how == self.how else "its power was cut" if how == "forced" else ""
        return replace(self, ended=now, how=how, why=why)

    def left(self, now: float) -> float:
        """Seconds until the plug is pulled."""
        return max(0.0, self.deadline - now) if self.runs else 0.0

    def words(self) -> str:
        """For people: how it ended, or how it goes."""
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
    if not -FAR < number < FAR:  # nor no number at all, as JSON may have it
        raise ValueError(value)
    return number


_READ: dict[object, Callable[[Any], Any]] = {"float": _number, "int": int, "str": str}


@cache
def _boot_id() -> str:
    """Of this start of the host; "" where the kernel says nothing."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
