"""The operations of the matrix: how each is asked for, and how its server is when it is done, or taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compute import actions
from compute.stepspec import On, StepSpec

SOURCE, DEST, CONDUCTOR, BROKER = "source", "destination", "conductor", "broker"
HOSTS, ALL = "hosts", "all"
HOST = {SOURCE: "host1", DEST: "host3"}
PROCESSES = {
    SOURCE: ["host1"], DEST: ["host3"], CONDUCTOR: ["conductor-cell1"], BROKER: ["redis-cell1"],
    HOSTS: ["host1", "host3"], ALL: ["host1", "host3", "conductor-cell1", "redis-cell1"],
}  # fmt: skip
SMALL, LARGE = "m1.nano", "m1.tiny"
OFF, ON, OUT, IN, BACK = "powered off", "powered on", "migrated out", "migrated in", "taken back"
AWAY = "destroyed"


@dataclass(frozen=True, slots=True)
class End:
    """How a server is: its status, the one place of its guest, its flavor; `effects`: what its hypervisors did."""

    status: str
    at: str
    flavor: str = SMALL
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `lead_in`: what is asked before, and the status it leads to.

    `undone`: it is to fail, and the rows are the steps that take it back.
    """

    key: str  # the action's class
    body: dict[str, Any]
    done: End
    taken_back: End
    lead_in: tuple[tuple[dict[str, Any], str], ...] = ()
    orders: Mapping[str, str] = field(default_factory=dict)  # of the image, to the fake driver
    home: str = SOURCE  # where the server is when it is asked for
    unopened: frozenset[str] = frozenset()  # steps that only open when somebody takes the server
    undone: bool = False

    @property
    def steps(self) -> list[StepSpec]:
        """Those it goes through, in their order."""
        declared = actions.every()[self.key].steps
        if self.undone:
            return [spec.undone_by for spec in reversed(declared) if spec.undone_by is not None]
        return [spec for spec in declared if spec.name not in self.unopened]

    def runs_on(self, step: str) -> str:
        """The process that runs a step of it."""
        on = next(spec.on for spec in self.steps if spec.name == step)
        return PROCESSES[self.home if on is On.HOST else on.value][0]


TO_LARGE = {"resize": {"flavorRef": "1"}}
LIVE = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
AS_BEFORE, WAITS = End("ACTIVE", SOURCE), End("VERIFY_RESIZE", DEST, LARGE)
MOVED = (OFF, OUT, IN, ON)
RESIZED = ((TO_LARGE, "VERIFY_RESIZE"),)

OPERATIONS = {
    "live-migrate": Operation(
        key="MigrateLive", body=LIVE, done=End("ACTIVE", DEST, effects=(OUT, IN)), taken_back=AS_BEFORE,
    ),
    "resize": Operation(
        key="Resize", body=TO_LARGE, done=End("VERIFY_RESIZE", DEST, LARGE, MOVED), taken_back=AS_BEFORE,
        unopened=frozenset({"forget_source"}),
    ),
    "migrate": Operation(
        key="Migrate", body={"migrate": None}, done=End("VERIFY_RESIZE", DEST, SMALL, MOVED), taken_back=AS_BEFORE,
        unopened=frozenset({"forget_source"}),
    ),
    "confirm": Operation(
        key="ConfirmResize", body={"confirmResize": None}, done=End("ACTIVE", DEST, LARGE), taken_back=WAITS,
        lead_in=RESIZED, home=DEST,
    ),
    "revert": Operation(
        key="RevertResize", body={"revertResize": None}, taken_back=WAITS, lead_in=RESIZED, home=DEST,
        done=End("ACTIVE", SOURCE, SMALL, (OFF, BACK, ON, AWAY)),
    ),
    "live-migrate-fails": Operation(
        key="MigrateLive", body=LIVE, done=End("ACTIVE", DEST), taken_back=AS_BEFORE, undone=True,
        orders={"hand_over_fail": "always"},
    ),
    "resize-fails": Operation(
        key="Resize", body=TO_LARGE, done=WAITS, taken_back=AS_BEFORE, undone=True,
        orders={"settle_fail": "always"},
    ),
    "revert-fails": Operation(
        key="RevertResize", body={"revertResize": None}, done=AS_BEFORE, taken_back=WAITS, lead_in=RESIZED, home=DEST,
        undone=True, orders={"take_back_fail": "always"},
    ),
}  # fmt: skip
