"""The operations of the matrix: how each is asked for, and how its server is when it is done, or taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from compute.operations import registry
from compute.operations.step import On, StepSpec
from compute.virt.base import PowerState

SOURCE, DEST, CONDUCTOR, BROKER = "source", "destination", "conductor", "broker"
HOSTS, ALL = "hosts", "all"
HOST = {SOURCE: "host1", DEST: "host3"}
PROCESSES = {
    SOURCE: ["host1"], DEST: ["host3"], CONDUCTOR: ["conductor-cell1"], BROKER: ["redis-cell1"],
    HOSTS: ["host1", "host3"], ALL: ["host1", "host3", "conductor-cell1", "redis-cell1"],
}  # fmt: skip
SMALL, LARGE = "m1.nano", "m1.tiny"
OFF, ON, OUT, IN, BACK = "powered off", "powered on", "migrated out", "migrated in", "taken back"
AWAY, BUILT, BUILT_OFF, COPIED = "destroyed", "spawned", "built, off", "snapshot taken"
IMAGE = "the image it was booted from"  # in a body: its id


class Scene(StrEnum):
    """What the source does meanwhile, besides being ended."""

    WELL = "it works"
    GONE = "it is gone, and comes back after the operation"
    RETURNS = "it is gone, and comes back when the operation is done: the rows are what it does then"


@dataclass(frozen=True, slots=True)
class End:
    """How a server is: its status, the one place of its guest, its flavor; `effects`: what its hypervisors did.

    `or_else`: what they may have done instead.
    """

    status: str
    at: str
    flavor: str = SMALL
    effects: tuple[str, ...] = ()
    or_else: tuple[str, ...] = ()
    power: PowerState = PowerState.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `lead_in`: what is asked before; `ready` is the vm_state it leads to.

    `undone`: it is to fail, and the rows are the steps that take it back. `then`: the rows are the steps of what
    follows it, an action of another class.
    """

    key: str  # the action's class
    body: dict[str, Any]
    done: End
    taken_back: End
    lead_in: dict[str, Any] = field(default_factory=dict)
    ready: str = "active"
    faults: Mapping[str, str] = field(default_factory=dict)  # of the image, to the fake driver
    home: str = SOURCE  # where the server is when it is asked for
    spared: frozenset[str] = frozenset()  # who has nothing to do with it
    unopened: frozenset[str] = frozenset()  # steps that do not open here
    undone: bool = False
    then: str = ""
    scene: Scene = Scene.WELL

    @property
    def steps(self) -> list[StepSpec]:
        """Those of its rows, in their order."""
        declared = registry.every()[self.then or self.key].steps
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
ON_THE_SHELF = End("SHELVED_OFFLOADED", "", effects=(OFF, COPIED, AWAY))
MOVED = (OFF, OUT, IN, ON)
ONLY_IF_TAKEN = frozenset({"cleanup_source"})
ONE_HOST, NO_SOURCE = frozenset({DEST, HOSTS}), frozenset({SOURCE, HOSTS})

OPERATIONS = {
    "live-migrate": Operation(
        key="MigrateLive", body=LIVE, done=End("ACTIVE", DEST, effects=(OUT, IN)), taken_back=AS_BEFORE,
    ),
    "live-migrate-fails": Operation(
        key="MigrateLive", body=LIVE, done=End("ACTIVE", DEST), taken_back=AS_BEFORE, undone=True,
        faults={"migrate_out_fail": "always"},
    ),
    "resize": Operation(
        key="Resize", body=TO_LARGE, done=End("VERIFY_RESIZE", DEST, LARGE, MOVED), taken_back=AS_BEFORE,
        unopened=ONLY_IF_TAKEN,
    ),
    "resize-fails": Operation(
        key="Resize", body=TO_LARGE, done=WAITS, taken_back=AS_BEFORE, undone=True,
        faults={"finish_migration_fail": "always"},
    ),
    "migrate": Operation(
        key="Migrate", body={"migrate": None}, done=End("VERIFY_RESIZE", DEST, SMALL, MOVED), taken_back=AS_BEFORE,
        unopened=ONLY_IF_TAKEN,
    ),
    "confirm": Operation(
        key="ConfirmResize", body={"confirmResize": None}, done=End("ACTIVE", DEST, LARGE), taken_back=WAITS,
        lead_in=TO_LARGE, ready="resized", home=DEST,
    ),
    "revert": Operation(
        key="RevertResize", body={"revertResize": None}, taken_back=WAITS, lead_in=TO_LARGE, ready="resized", home=DEST,
        done=End("ACTIVE", SOURCE, SMALL, (OFF, BACK, ON, AWAY)),
    ),
    "revert-fails": Operation(
        key="RevertResize", body={"revertResize": None}, done=AS_BEFORE, taken_back=WAITS, lead_in=TO_LARGE,
        ready="resized", home=DEST, undone=True, faults={"revert_migration_fail": "always"},
    ),
    "rebuild": Operation(
        key="Rebuild", body={"rebuild": {"imageRef": IMAGE}}, done=End("ACTIVE", SOURCE, effects=(OFF, AWAY, BUILT)),
        taken_back=AS_BEFORE, spared=ONE_HOST,
    ),
    "rescue": Operation(
        key="Rescue", body={"rescue": None}, done=End("RESCUE", SOURCE, effects=(OFF, "rescued")),
        taken_back=AS_BEFORE, spared=ONE_HOST,
    ),
    "unrescue": Operation(
        key="Unrescue", body={"unrescue": None}, done=End("ACTIVE", SOURCE, effects=(OFF, "unrescued", ON)),
        taken_back=End("RESCUE", SOURCE), lead_in={"rescue": None}, ready="rescued", spared=ONE_HOST,
    ),
    "shelve": Operation(
        key="Shelve", body={"shelve": None}, done=ON_THE_SHELF, taken_back=AS_BEFORE, spared=ONE_HOST,
    ),
    "shelve-fails": Operation(
        key="Shelve", body={"shelve": None}, done=ON_THE_SHELF, taken_back=AS_BEFORE, spared=ONE_HOST, undone=True,
        faults={"snapshot_fail": "always"},
    ),
    "unshelve": Operation(
        key="Unshelve", body={"unshelve": {"host": HOST[DEST]}}, done=End("ACTIVE", DEST, effects=(BUILT,)),
        taken_back=ON_THE_SHELF, lead_in={"shelve": None}, ready="shelved_offloaded", home="",
        unopened=frozenset({"power_on"}), spared=NO_SOURCE,
    ),
    "evacuate": Operation(
        key="Evacuate", body={"evacuate": {}}, taken_back=AS_BEFORE, spared=NO_SOURCE, scene=Scene.GONE,
        done=End("SHUTOFF", DEST, effects=(BUILT_OFF, OFF, AWAY), or_else=(BUILT_OFF, AWAY), power=PowerState.SHUTDOWN),
    ),
    "evacuated-from": Operation(
        key="Evacuate", body={"evacuate": {}}, taken_back=AS_BEFORE, then="RemoveStaleGuest", scene=Scene.RETURNS,
        done=End("SHUTOFF", DEST, effects=(BUILT_OFF, OFF, AWAY), or_else=(BUILT_OFF, AWAY), power=PowerState.SHUTDOWN),
    ),
}  # fmt: skip
