"""Who is powered off by what, with which words, and what is to come of it: the table of docs/guest-shutdown.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

from deploy.guests.micro import Micro

RETRY = 10  # seconds between signals
DEFAULT = 60  # the operator's word
GUESTS = {
    "obeys": Micro("obeys"),
    "late": Micro("late", ready_after=15),
    "never": Micro("never", ignore_acpi=True),
    "leaves": Micro("leaves", shutdown_delay=4),
}
TIMEOUT, OWN = "os_shutdown_timeout", "termination_grace_period_seconds"
HARD, SOFT = {"shutdown_type": "HARD"}, {"shutdown_type": "SOFT"}
# operation -> the key of its body, what it has in it, and what the server is afterwards
OPERATIONS: dict[str, tuple[str, dict[str, str], str]] = {
    "stop": ("os-stop", {}, "SHUTOFF"),
    "rescue": ("rescue", {}, "RESCUE"),
    "resize": ("resize", {"flavorRef": "1"}, "VERIFY_RESIZE"),
    "migrate": ("migrate", {}, "VERIFY_RESIZE"),
    "shelve": ("shelve", {}, "SHELVED_OFFLOADED"),
    "rebuild": ("rebuild", {"imageRef": ""}, "ACTIVE"),
    "reboot": ("reboot", {"type": "SOFT"}, "ACTIVE"),
    "delete": ("", {}, "DELETED"),
}
OBEYS, AT_ONCE = "obeys", "at once"


@dataclass(frozen=True)
class Case:
    """One guest. `end`: obeys (the first signal it can hear), at once, or the seconds after which it is forced off."""

    operation: str
    guest: str
    end: str | int
    image: int | None = None  # seconds its image gives
    own: int | None = None  # seconds its server has
    asks: dict[str, Any] = field(default_factory=dict)
    how: str = "acpi"

    @property
    def name(self) -> str:
        """For its server, and for people."""
        words = [self.operation, self.guest]
        words += [f"image-{self.image}"] * (self.image is not None) + [f"own-{self.own}"] * (self.own is not None)
        return "-".join([*words, *(str(word) for word in self.asks.values())])

    @property
    def signals(self) -> int:
        """How many one that is forced off gets."""
        return ceil(self.end / RETRY) if isinstance(self.end, int) else 0

    def body(self, image: str) -> dict[str, Any]:
        """Of the request; `image`: for what wants one."""
        key, has, _ = OPERATIONS[self.operation]
        inside = {name: value or image for name, value in has.items()} | self.asks
        return {key: inside or None}

    @property
    def status(self) -> str:
        """Afterwards."""
        return OPERATIONS[self.operation][2]


def _everything() -> list[Case]:
    cases = [
        Case("stop", "obeys", OBEYS),
        Case("stop", "late", OBEYS),
        Case("stop", "never", DEFAULT),
        Case("stop", "agent", OBEYS, how="agent"),
        Case("stop", "obeys", AT_ONCE, asks=HARD),
        Case("stop", "never", AT_ONCE, asks=HARD),
        Case("stop", "never", 5, asks={"shutdown_timeout": 5}),
        Case("stop", "never", 6, own=6),
        Case("stop", "never", 12, own=6, asks={"shutdown_timeout": 12}),
        Case("stop", "never", 13, image=13),
        Case("stop", "never", 6, own=6, image=13),
        Case("stop", "obeys", AT_ONCE, image=0),
        Case("stop", "never", AT_ONCE, asks={"shutdown_timeout": 0}),
        Case("rebuild", "obeys", OBEYS),
        Case("rebuild", "never", 13, image=13),
        Case("reboot", "obeys", OBEYS),
        Case("reboot", "late", OBEYS),
        Case("reboot", "never", 13, image=13),
        Case("delete", "obeys", AT_ONCE),
        Case("delete", "never", 13, image=13, asks=SOFT),
        Case("delete", "obeys", OBEYS, asks=SOFT),
        Case("delete", "obeys", OBEYS, own=30),
        Case("delete", "never", 6, own=6),
        Case("delete", "never", AT_ONCE, own=30, asks=HARD),
    ]
    for operation in ("rescue", "resize", "migrate", "shelve"):
        cases += [
            Case(operation, "obeys", OBEYS),
            Case(operation, "never", 13, image=13),
            Case(operation, "never", AT_ONCE, asks=HARD),
        ]
    return cases


CASES = {case.name: case for case in _everything()}
