"""The clock of a guest that was asked to shut down: one per guest, kept with it, whoever asks. Plain data.

The wall clock counts, because it goes on while the process that set it is dead.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import floor
from typing import Any

ENDED = {"crashed": "guest crashed after", "gone": "guest was gone after", "left": "given up after"}
HURRY = "somebody could not wait"  # why a clock was ended before its deadline
SOON = 1e-3  # seconds: floats that are meant to be equal are no further apart


@dataclass(frozen=True, slots=True)
class Clock:
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

    @classmethod
    def start(cls, now: float, timeout: float, interval: float) -> Clock:
        """A grace period of `timeout` seconds that begins now."""
        return cls(now, now + timeout, max(0.05, interval))

    @classmethod
    def load(cls, kept: str | dict[str, Any] | None) -> Clock | None:
        """What `text` or `facts` gave; None for nothing, and for what nobody can read any more."""
        try:
            facts = json.loads(kept) if isinstance(kept, str) and kept else kept
            return cls(**facts) if isinstance(facts, dict) else None
        except (ValueError, TypeError):
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
        """Why one was forced off, in a word: deadline, hurry (its clock was ended), paused (it could not hear), hard."""
        if self.why:
            return "hurry" if self.why == HURRY else "paused"
        return "deadline" if self.deadline > self.begun else "hard"

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

    def signal(self, now: float, by: str) -> Clock:
        """It was signalled once more."""
        ways = [way for way in self.by.split(", ") if way]
        both = ", ".join(ways if by in ways else [*ways, by])
        return replace(self, signals=self.signals + 1, signalled=now, by=both)

    def forcing(self, why: str = "") -> Clock:
        """The plug is about to be pulled: said before, so that whoever finds the guest off knows."""
        return replace(self, how="forced", why=why)

    def end(self, now: float, how: str = "guest") -> Clock:
        """The guest is off."""
        return replace(self, ended=now, how=self.how or how)

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
            return f"forced off after {took:.0f} s{why}, {signals}" if self.signals else f"forced off at once{why}"
        return f"{ENDED.get(self.how, 'guest shut down in')} {took:.1f} s, {signals}"
