"""A guest's files on this host, and the host's records of migrating guests."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from compute.virt.base import GuestNotFound

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CONSOLE_BYTES = 256 << 10  # what console_output returns at most, and what survives a trim
TRIM_ABOVE = 4 << 20


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """One guest's directory; a domain is ours exactly when this directory exists.

    Hosts may share the parent directory. Then only the owner, the host where the guest lives, may remove it.
    """

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    @property
    def earlier_console(self) -> Path:
        """The console output from the host that the guest came from."""
        return self.directory / "console.earlier"

    def owner(self) -> str:
        """Return the id of the owning host; "" if there is none."""
        try:
            return (self.directory / "owner").read_text().strip()
        except FileNotFoundError:
            return ""

    def own(self, host: str) -> None:
        """Record `host` as the owner; create the directory if it does not exist."""
        self.directory.mkdir(exist_ok=True)
        if self.owner() != host:
            _write(self.directory / "owner", f"{host}\n")

    def is_of(self, host: str) -> bool:
        """Return whether `host` or no host owns it."""
        return self.owner() in ("", host)

    def disown(self, host: str) -> None:
        """Remove `host` as the owner, and leave the files to another host."""
        if self.owner() == host:
            (self.directory / "owner").unlink(missing_ok=True)

    def console_tail(self) -> str:
        """Return the last CONSOLE_BYTES of the serial console, from the first whole line on."""
        now = _tail(self.console)
        before = _tail(self.earlier_console) if len(now) < CONSOLE_BYTES else b""
        kept = (before + now)[-CONSOLE_BYTES:]
        if len(kept) == CONSOLE_BYTES:
            kept = kept.partition(b"\n")[2]
        return kept.decode(errors="replace").replace("\r\n", "\n")

    def trim_console(self) -> None:
        """Keep a guest's output from filling the host. Call it only while no QEMU has the file open."""
        if self.console.exists() and self.console.stat().st_size > TRIM_ABOVE:
            self.console.write_text(self.console_tail())
            self.earlier_console.unlink(missing_ok=True)

    def remember_console(self, text: str) -> None:
        """Store the console output from the guest's earlier host, in place of any other."""
        _write(self.earlier_console, text)

    def remove(self, host: str) -> None:
        """Delete the directory, unless another host owns it."""
        if self.is_of(host):
            shutil.rmtree(self.directory, ignore_errors=True)


def files_of(guests: Path, uuid: str) -> GuestFiles:
    """Return the guest's files, always inside `guests`. Raises GuestNotFound for text that is no UUID."""
    if not UUID.fullmatch(uuid):
        raise GuestNotFound(f"{uuid!r} is no UUID")
    return GuestFiles(guests / uuid)


class GuestRecords:
    """The host's records of some guests, one small JSON file each, replaced atomically."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def read(self, uuid: str) -> dict[str, Any]:
        """Return the record, or {} if there is none."""
        try:
            note: dict[str, Any] = json.loads((self._directory / uuid).read_text())
        except FileNotFoundError:
            return {}
        return note

    def write(self, uuid: str, note: Mapping[str, Any]) -> None:
        _write(self._directory / uuid, json.dumps(dict(note)))

    def remove(self, uuid: str) -> None:
        (self._directory / uuid).unlink(missing_ok=True)

    def all(self) -> set[str]:
        """Return the UUIDs of the guests that have a record."""
        return {entry.name for entry in self._directory.iterdir()}


def host_id(state: Path) -> str:
    """Return this host's id, created once; it names the owner of files in shared directories."""
    file = state / "host-id"
    if not file.exists():
        new = file.with_name(f"host-id.{uuid4().hex}")
        new.write_text(f"{uuid4()}\n")
        with suppress(FileExistsError):  # when two processes do this at once, the first one wins
            os.link(new, file)
        new.unlink()
    return file.read_text().strip()


def _tail(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - CONSOLE_BYTES))
            return opened.read(CONSOLE_BYTES)
    except FileNotFoundError:
        return b""


def _write(file: Path, text: str) -> None:
    """Replace the file atomically."""
    new = file.with_name(f".{file.name}.{uuid4().hex}")
    new.write_text(text)
    new.replace(file)
