"""Migration between fake hosts: a guest travels as a file in the inbox directory of its destination."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from compute.virt.base import (
    Command,
    Guest,
    GuestInvalidState,
    GuestNotFound,
    HypervisorUnavailable,
    MigrationAborted,
    PowerState,
    Progress,
    VirtError,
    Watch,
)
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.effects import Effect
from compute.virt.fake.state import COLUMNS, StateFile
from compute.virt.fake.timer import GuestTimers

LOOK_EVERY = 0.2  # seconds between two calls of `watch`
MIB, GIB = 1 << 20, 1 << 30


class Migration:
    """The migration verbs. A guest is in `guests` of one host only: the one where it lives."""

    _state: StateFile
    _call: CallLog
    _timer: GuestTimers

    def pre_migrate(self, guest: Guest) -> Mapping[str, str]:
        with self._call("pre_migrate", guest.uuid, guest):
            if self._state.find(guest.uuid) is not None:
                raise VirtError(f"guest {guest.uuid} is on this host already")
            self._forget_moves(guest.uuid)
            return {"inbox": str(self._inbox)}

    def cancel_pre_migrate(self, uuid: str) -> None:
        with self._call("cancel_pre_migrate", uuid):
            self._parcel(self._inbox, uuid).unlink(missing_ok=True)

    def check_can_migrate(self, uuid: str, to: Mapping[str, str]) -> None:
        with self._call("check_can_migrate", uuid):
            if not Path(to["inbox"]).is_dir():
                raise HypervisorUnavailable(f"there is no {to['inbox']}")

    def migrate_out(self, guest: Guest, to: Mapping[str, str], watch: Watch) -> str:
        """Write the file before the guest leaves, so that a guest always exists somewhere."""
        with self._call("migrate_out", guest.uuid, guest) as die_if_ordered:
            if self._departed(guest.uuid):
                return "the guest moved before"
            was_off = self._is_off(guest.uuid)
            went = self._travel(guest, watch)
            parcel = self._parcel(Path(to["inbox"]), guest.uuid)
            if not was_off and self._is_off(guest.uuid):
                raise GuestInvalidState("the guest went off while it was moving")
            with self._state.alone():
                packed = self._pack(guest.uuid)
                partial_file = parcel.with_suffix(".part")
                partial_file.write_text(packed)
                partial_file.replace(parcel)
                die_if_ordered()
                self._state.run("INSERT OR REPLACE INTO departed VALUES (?, ?)", guest.uuid, packed)
                self._state.run("DELETE FROM guests WHERE uuid = ?", guest.uuid)
                self._state.happened(guest.uuid, Effect.MIGRATED_OUT)
            return went

    def finish_migration(self, guest: Guest) -> None:
        with self._call("finish_migration", guest.uuid, guest):
            parcel = self._parcel(self._inbox, guest.uuid)
            if self._state.find(guest.uuid) is None:
                if not parcel.exists():
                    raise GuestNotFound(f"guest {guest.uuid} has not come to this host")
                self._unpack(guest.uuid, parcel.read_text(), Effect.MIGRATED_IN)
            grown = "UPDATE guests SET virtual_size = max(virtual_size, ?) WHERE uuid = ?"
            self._state.run(grown, guest.disk_gb * GIB, guest.uuid)
            parcel.unlink(missing_ok=True)
            self._timer.wind()

    def revert_migration(self, guest: Guest) -> None:
        with self._call("revert_migration", guest.uuid, guest):
            packed = self._departed(guest.uuid)
            if packed:
                self._unpack(guest.uuid, packed, Effect.TAKEN_BACK)
            elif self._state.find(guest.uuid) is None:
                raise GuestNotFound(f"no guest {guest.uuid} has left this host")

    def cleanup_source(self, uuid: str) -> None:
        with self._call("cleanup_source", uuid):
            self._state.run("DELETE FROM departed WHERE uuid = ?", uuid)

    @abstractmethod
    def _is_down(self, uuid: str) -> None:
        """Implemented by the driver."""

    def _is_off(self, uuid: str) -> bool:
        self._is_down(uuid)  # record the guest's own power-off first, if its time has come
        record = self._state.find(uuid)
        return record is not None and record.power in (PowerState.SHUTDOWN, PowerState.CRASHED)

    def _travel(self, guest: Guest, watch: Watch) -> str:
        """Take the injected time; return a sentence about the migration. Raises MigrationAborted."""
        seconds, total = self._call.seconds("migrate_out", guest.uuid, guest), guest.memory_mb * MIB
        begun = time.monotonic()
        while True:
            gone = time.monotonic() - begun
            left = max(0.0, 1 - gone / seconds) if seconds else 0.0
            command = watch(Progress(memory_total=total, memory_left=int(total * left), seconds=gone))
            if command is Command.ABORT:
                raise MigrationAborted("the migration was aborted")
            if left == 0 or command is Command.END_NOW:
                return f"the guest moved in {gone:.1f} s: {total / MIB:.1f} MiB sent, paused for 0 ms"
            self._call.pause(min(LOOK_EVERY, seconds - gone))

    @property
    def _inbox(self) -> Path:
        """The directory where guests arrive: beside the state file, else a temporary one that goes with this object."""
        if self._state.file is not None:
            inbox = self._state.file.with_suffix(".arriving")
            inbox.mkdir(exist_ok=True)
            return inbox
        if not hasattr(self, "_own_inbox"):
            self._own_inbox = Path(tempfile.mkdtemp(prefix="stillwater-fake-"))
            weakref.finalize(self, shutil.rmtree, self._own_inbox, ignore_errors=True)
        return self._own_inbox

    @staticmethod
    def _parcel(inbox: Path, uuid: str) -> Path:
        return inbox / f"{uuid}.json"

    def _forget_moves(self, uuid: str) -> None:
        """Remove the records of a guest that was on its way here or has left."""
        self._parcel(self._inbox, uuid).unlink(missing_ok=True)
        self._state.run("DELETE FROM departed WHERE uuid = ?", uuid)

    def _departed(self, uuid: str) -> str:
        rows = self._state.run("SELECT packed FROM departed WHERE uuid = ?", uuid)
        return rows[0][0] if rows else ""

    def _pack(self, uuid: str) -> str:
        rows = self._state.run(f"SELECT {COLUMNS}, console FROM guests WHERE uuid = ?", uuid)  # noqa: S608
        if not rows:
            raise GuestNotFound(f"no guest {uuid} on this host")
        return json.dumps(dict(zip((*COLUMNS.split(", "), "console"), rows[0], strict=True)))

    def _unpack(self, uuid: str, packed: str, effect: Effect) -> None:
        values = json.loads(packed)
        marks = ", ".join("?" * len(values))
        columns = ", ".join(values)
        with self._state.alone():
            self._state.run(f"INSERT OR REPLACE INTO guests ({columns}) VALUES ({marks})", *values.values())  # noqa: S608
            self._state.run("DELETE FROM departed WHERE uuid = ?", uuid)
            self._state.happened(uuid, effect)
