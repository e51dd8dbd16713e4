"""Which side wins a power mismatch of an idle server: one table, as data.

The host's setting is STILLWATER_POWER_TRUTH. A server's metadata, its image and its flavor override it, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from compute.state import VmState
from compute.virt.base import PowerState

if TYPE_CHECKING:
    from compute.models import Instance

OWN = "power_truth"  # of a server: in its metadata
OF_IMAGE = "os_power_truth"  # of an image: among its properties
OF_FLAVOR = "stillwater:power_truth"  # of a flavor: among its extra specs


class PowerAuthority(StrEnum):
    """Which side wins. The values are those of STILLWATER_POWER_TRUTH."""

    HYPERVISOR = "hypervisor"
    DATABASE = "database"
    NOVA = "nova"
    RECORD_ONLY = "record-only"


class SyncAction(StrEnum):
    """What is done about a mismatch, besides recording the power state."""

    FOLLOW = "follow"
    RESTORE = "restore"
    WARN = "warn"


class PowerGoal(StrEnum):
    """The power state to restore."""

    ON = "on"
    OFF = "off"
    PAUSED = "paused"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is done about one mismatch: the vm_state to record, or the power state to restore."""

    does: SyncAction
    vm_state: VmState | None = None
    back: PowerGoal | None = None

    @property
    def words(self) -> str:
        """The verdict as text."""
        return f"restored ({self.back})" if self.back else f"becomes {self.vm_state}" if self.vm_state else "warning"


Table = Mapping[tuple[str, PowerState], Verdict]
OFF = (PowerState.SHUTDOWN, PowerState.CRASHED)
ON = (PowerState.RUNNING, PowerState.PAUSED)
WORDS = frozenset(str(truth) for truth in PowerAuthority)
METADATA = {OWN: {"enum": sorted(WORDS)}}  # schema of a server's own setting


def _rows(vm_state: VmState, seen: tuple[PowerState, ...], verdict: Verdict) -> dict[tuple[str, PowerState], Verdict]:
    return {(vm_state, power_state): verdict for power_state in seen}


def _follow(vm_state: VmState) -> Verdict:
    return Verdict(SyncAction.FOLLOW, vm_state)


def _back(back: PowerGoal) -> Verdict:
    return Verdict(SyncAction.RESTORE, back=back)


_RUNNING, _PAUSED, _SUSPENDED = (PowerState.RUNNING,), (PowerState.PAUSED,), (PowerState.SUSPENDED,)
_WARN = Verdict(SyncAction.WARN)

# (vm_state on record, power state seen) -> verdict. For every other pair only power_state is recorded.
TABLES: dict[PowerAuthority, Table] = {
    PowerAuthority.HYPERVISOR: {
        **_rows(VmState.ACTIVE, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.ACTIVE, _PAUSED, _follow(VmState.PAUSED)),
        **_rows(VmState.PAUSED, _RUNNING, _follow(VmState.ACTIVE)),
        **_rows(VmState.PAUSED, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.STOPPED, _RUNNING, _follow(VmState.ACTIVE)),  # PAUSED: QEMU starts, runs in a moment
        **_rows(VmState.SUSPENDED, _RUNNING, _follow(VmState.ACTIVE)),
        **_rows(VmState.SUSPENDED, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.SHELVED, ON, _WARN),
        **_rows(VmState.SOFT_DELETED, ON, _WARN),
    },
    PowerAuthority.DATABASE: {
        **_rows(VmState.ACTIVE, (*OFF, *_PAUSED, *_SUSPENDED), _back(PowerGoal.ON)),
        **_rows(VmState.RESCUED, (*OFF, *_PAUSED), _back(PowerGoal.ON)),
        **_rows(VmState.PAUSED, _RUNNING, _back(PowerGoal.PAUSED)),
        **_rows(VmState.PAUSED, OFF, _follow(VmState.STOPPED)),  # its memory is lost: it cannot be paused again
        **_rows(VmState.STOPPED, ON, _back(PowerGoal.OFF)),
        **_rows(VmState.SUSPENDED, ON, _back(PowerGoal.SUSPENDED)),
        **_rows(VmState.SUSPENDED, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.SHELVED, ON, _back(PowerGoal.OFF)),
        **_rows(VmState.SOFT_DELETED, ON, _back(PowerGoal.OFF)),
    },
    PowerAuthority.NOVA: {
        **_rows(VmState.ACTIVE, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.ACTIVE, (*_PAUSED, *_SUSPENDED), _WARN),
        **_rows(VmState.PAUSED, OFF, _follow(VmState.STOPPED)),
        **_rows(VmState.STOPPED, ON, _back(PowerGoal.OFF)),
        **_rows(VmState.SHELVED, ON, _WARN),
        **_rows(VmState.SOFT_DELETED, ON, _WARN),
    },
    PowerAuthority.RECORD_ONLY: {},
}
DECIDED = frozenset(pair for table in TABLES.values() for pair in table)  # pairs with a verdict under some authority


def authority_for(instance: Instance, otherwise: PowerAuthority) -> tuple[PowerAuthority, str]:
    """Return the power authority of a server (`otherwise` is its host's), and where it is set."""
    word, who = own_authority(instance)
    return (otherwise, "its host") if word is None else (word, who)


def own_authority(instance: Instance) -> tuple[PowerAuthority | None, str]:
    """Return the server's own power authority, and where it is set; None: its host's. Unknown values are ignored."""
    for word, who in _said(instance):
        if word in WORDS:
            return PowerAuthority(word), who
    return None, ""


def verdict(truth: PowerAuthority, vm_state: str, power_state: PowerState) -> Verdict | None:
    """Return what to do besides recording the power state; None: nothing."""
    return TABLES[truth].get((vm_state, power_state))


def _said(instance: Instance) -> Iterator[tuple[Any, str]]:
    yield instance.metadata.get(OWN), "its metadata"
    yield (instance.image.get("properties") or {}).get(OF_IMAGE), "its image"
    yield (instance.flavor.get("extra_specs") or {}).get(OF_FLAVOR), "its flavor"
