"""The state of the fake hypervisor: in memory, or in a file that outlives a killed worker."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from compute.virt.base import GuestNotFound, PowerState, ShutdownPreference
from compute.virt.fake.effects import ENDS, KEPT, Effect, RecordedEffect
from compute.virt.shutdown_timer import ShutdownTimer

CONSOLE_CHARACTERS = 64 << 10
SHARED_SECONDS = 0.2
SCHEMA = """
CREATE TABLE IF NOT EXISTS guests (
    uuid TEXT PRIMARY KEY, name TEXT NOT NULL, power INTEGER NOT NULL,
    virtual_size INTEGER NOT NULL, mark TEXT NOT NULL DEFAULT '',
    off_at REAL, presses INTEGER NOT NULL DEFAULT 0, boots INTEGER NOT NULL DEFAULT 0,
    properties TEXT NOT NULL DEFAULT '{}', console TEXT NOT NULL DEFAULT '',
    rescue TEXT NOT NULL DEFAULT '', timer TEXT NOT NULL DEFAULT '', shutdown_preference TEXT NOT NULL DEFAULT '',
    booted_at REAL NOT NULL DEFAULT 0, ends TEXT NOT NULL DEFAULT '', node TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS guests_going_down ON guests (off_at) WHERE off_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS images (id TEXT PRIMARY KEY, virtual_size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS failures (
    uuid TEXT, verb TEXT, count INTEGER NOT NULL, PRIMARY KEY (uuid, verb));
CREATE TABLE IF NOT EXISTS departed (uuid TEXT PRIMARY KEY, packed TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, uuid TEXT NOT NULL,
    verb TEXT NOT NULL, mark TEXT NOT NULL);
"""
# columns of `guests` that a file of an older version does not have
TEXTS = ("mark", "rescue", "timer", "shutdown_preference", "ends", "node")
LATER_COLUMNS = dict.fromkeys(TEXTS, "TEXT NOT NULL DEFAULT ''") | {
    "booted_at": "REAL NOT NULL DEFAULT 0"
}
COLUMNS = (
    "uuid, name, power, virtual_size, off_at, presses, boots, properties, mark, rescue, shutdown_preference, "
    "booted_at, ends, node"
)
# `ends` -> the guest's state after its `off_at`
OUTCOMES = {
    "": (PowerState.SHUTDOWN, Effect.OFF_BY_GUEST),
    "crash": (PowerState.CRASHED, Effect.CRASHED),
    "reboot": (PowerState.RUNNING, Effect.REBOOTED_BY_GUEST),
}


@dataclass(slots=True)
class GuestRecord:
    """One guest. `off_at` is the Unix time at which a guest that was signalled goes off, or `ends` in another way.

    `mark` names the last reboot begun; `rescue` is the image that the guest boots instead of its own disk.
    """

    uuid: str
    name: str
    power: PowerState
    virtual_size: int
    off_at: float | None = None
    presses: int = 0
    boots: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    mark: str = ""
    rescue: str = ""
    shutdown_preference: ShutdownPreference = field(default_factory=lambda: ShutdownPreference(""))
    booted_at: float = 0.0
    ends: str = ""  # one of OUTCOMES
    node: str = ""  # one of the host's nodes


class StateFile:
    """Guests, images, used failures and effects in one SQLite database, read at each call.

    Safe for many threads and for other processes. `alone()` makes several statements one transaction.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._lock = threading.RLock()
        self.file = file
        # Another process does not notify this one, so a waiter polls a shared file.
        self.look_again = SHARED_SECONDS if file is not None else None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(
            str(file or ":memory:"), timeout=30, isolation_level=None, check_same_thread=False
        )
        # No fsync: a killed process loses nothing, only a power cut of the host would.
        self._database.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; {SCHEMA}")
        self._grow()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the block in one write transaction, against other threads and processes. May be nested."""
        with self._lock:
            if self._database.in_transaction:
                yield
                return
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def find(self, uuid: str) -> GuestRecord | None:
        rows = self.run(f"SELECT {COLUMNS} FROM guests WHERE uuid = ?", uuid)  # noqa: S608
        return _record(rows[0]) if rows else None

    def get(self, uuid: str) -> GuestRecord:
        record = self.find(uuid)
        if record is None:
            raise GuestNotFound(f"no guest {uuid} on this host")
        return record

    def save(self, record: GuestRecord) -> None:
        self.run(
            f"INSERT INTO guests ({COLUMNS})"  # noqa: S608 - our own column names
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uuid) DO UPDATE SET name=excluded.name,"
            " power=excluded.power, virtual_size=excluded.virtual_size, off_at=excluded.off_at,"
            " presses=excluded.presses, boots=excluded.boots, properties=excluded.properties,"
            " mark=excluded.mark, rescue=excluded.rescue, shutdown_preference=excluded.shutdown_preference,"
            " booted_at=excluded.booted_at, ends=excluded.ends, node=excluded.node",
            record.uuid,
            record.name,
            int(record.power),
            record.virtual_size,
            record.off_at,
            record.presses,
            record.boots,
            json.dumps(dict(record.properties)),
            record.mark,
            record.rescue,
            json.dumps(asdict(record.shutdown_preference)),
            record.booted_at,
            record.ends,
            record.node,
        )

    def forget(self, uuid: str) -> None:
        """Delete the guest; its effects stay."""
        with self.alone():
            if self.run("DELETE FROM guests WHERE uuid = ? RETURNING uuid", uuid):
                self.happened(uuid, Effect.DESTROYED)
            self.run("DELETE FROM failures WHERE uuid = ?", uuid)

    def happened(self, uuid: str, effect: Effect, mark: str = "", at: float = 0.0) -> None:
        """Record a change, in the transaction that makes it."""
        row = self.run(
            "INSERT INTO effects (at, uuid, verb, mark) VALUES (?, ?, ?, ?) RETURNING id",
            at or time.time(), uuid, effect.value, mark,
        )  # fmt: skip
        if row[0][0] % 1000 == 0:
            self.run("DELETE FROM effects WHERE id <= ?", row[0][0] - KEPT)

    def effects(self, uuid: str = "") -> list[RecordedEffect]:
        """Return the changes of a guest ("": of all guests), oldest first."""
        rows = self.run("SELECT at, uuid, verb, mark FROM effects WHERE ? IN ('', uuid) ORDER BY id", uuid)
        return [RecordedEffect(at, of, Effect(verb), mark) for at, of, verb, mark in rows]

    def powers(self) -> dict[str, PowerState]:
        """Return every guest's power state; a guest whose time has come counts as off, or as its `ends` says."""
        rows = self.run("SELECT uuid, power, off_at, ends FROM guests")
        now = time.time()
        return {
            uuid: OUTCOMES[ends][0] if off_at is not None and off_at <= now else PowerState(power)
            for uuid, power, off_at, ends in rows
        }

    def placed(self) -> dict[str, str]:
        """Return the node of every guest."""
        return dict(self.run("SELECT uuid, node FROM guests"))

    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        """Return the shutdown preference of every guest, also of those that are off."""
        return {uuid: _preference(text) for uuid, text in self.run("SELECT uuid, shutdown_preference FROM guests")}

    def version(self) -> int:
        """Return a number that changes when another process has written."""
        return int(self.run("PRAGMA data_version")[0][0])

    def next_down(self) -> float | None:
        """Return the Unix time at which the next guest goes off, or None."""
        return self.run("SELECT min(off_at) FROM guests WHERE off_at IS NOT NULL")[0][0]

    def due(self) -> list[str]:
        """Return the guests whose time to go off has come."""
        rows = self.run("SELECT uuid FROM guests WHERE off_at <= ?", time.time())
        return [uuid for (uuid,) in rows]

    def mark_down(self, uuid: str) -> PowerState | None:
        """Power the guest off if its time has come. Returns its new state to the one caller that did it, else None."""
        with self.alone():
            due = self.run("SELECT off_at, ends FROM guests WHERE uuid = ? AND off_at <= ?", uuid, time.time())
            if not due:
                return None
            off_at, ends = due[0]
            power, effect = OUTCOMES[ends]
            self.run(
                "UPDATE guests SET power = ?, off_at = NULL, presses = 0, boots = boots + ?, booted_at = ?"
                " WHERE uuid = ?", int(power), power is PowerState.RUNNING, off_at, uuid,
            )  # fmt: skip
            self.happened(uuid, effect, at=off_at)
            return power

    def how_ended(self, uuid: str) -> str:
        """Return how the guest went off by its last effect; "gone" if it is unknown, "" if that effect ended nothing.
        """
        if self.find(uuid) is None:
            return "gone"
        rows = self.run("SELECT verb FROM effects WHERE uuid = ? ORDER BY id DESC LIMIT 1", uuid)
        return ENDS.get(Effect(rows[0][0]), "") if rows else ""

    def timer(self, uuid: str) -> ShutdownTimer | None:
        """Return the timer of the guest's last shutdown since it booted."""
        rows = self.run("SELECT timer FROM guests WHERE uuid = ?", uuid)
        return ShutdownTimer.load(rows[0][0]) if rows else None

    def save_timer(self, uuid: str, timer: ShutdownTimer | None) -> None:
        self.run("UPDATE guests SET timer = ? WHERE uuid = ?", timer.text if timer else "", uuid)

    def timers(self) -> dict[str, ShutdownTimer]:
        """Return the timer of every guest that has one, also of those that have ended."""
        rows = self.run("SELECT uuid, timer FROM guests WHERE timer != ''")
        return {uuid: timer for uuid, text in rows if (timer := ShutdownTimer.load(text)) is not None}

    def write_console(self, uuid: str, text: str) -> None:
        self.run(
            "UPDATE guests SET console = substr(console || ?, ?) WHERE uuid = ?",
            text, -CONSOLE_CHARACTERS, uuid,
        )  # fmt: skip

    def console(self, uuid: str) -> str:
        rows = self.run("SELECT console FROM guests WHERE uuid = ?", uuid)
        if not rows:
            raise GuestNotFound(f"no guest {uuid} on this host")
        return rows[0][0]

    def image_size(self, image_id: str) -> int | None:
        """Return the virtual size of an image in bytes, or None if it must be fetched."""
        rows = self.run("SELECT virtual_size FROM images WHERE id = ?", image_id)
        return rows[0][0] if rows else None

    def keep_image(self, image_id: str, virtual_size: int) -> None:
        self.run("INSERT OR REPLACE INTO images VALUES (?, ?)", image_id, virtual_size)

    def count_failure(self, uuid: str, verb: str) -> int:
        """Count one use of an injected failure of this guest's verb ("": of any guest's) and return the total."""
        rows = self.run(
            "INSERT INTO failures VALUES (?, ?, 1)"
            " ON CONFLICT (uuid, verb) DO UPDATE SET count = count + 1 RETURNING count",
            uuid, verb,
        )  # fmt: skip
        return rows[0][0]

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _grow(self) -> None:
        known = {row[1] for row in self.run("PRAGMA table_info(guests)")}
        for name, kind in LATER_COLUMNS.items():
            if name not in known:
                self.run(f"ALTER TABLE guests ADD COLUMN {name} {kind}")

    def run(self, statement: str, *values: object) -> list[tuple]:
        """Run one SQL statement and return its rows."""
        with self._lock:
            return self._database.execute(statement, values).fetchall()


def _record(row: tuple) -> GuestRecord:
    record = GuestRecord(*row)
    record.power, record.properties = PowerState(record.power), json.loads(str(record.properties))
    record.shutdown_preference = _preference(str(record.shutdown_preference))
    if record.off_at is not None and record.off_at <= time.time():  # its time has come, perhaps while no process ran
        record.power, record.off_at, record.presses = OUTCOMES[record.ends][0], None, 0
    return record


def _preference(text: str) -> ShutdownPreference:
    return ShutdownPreference(**json.loads(text)) if text else ShutdownPreference("")
