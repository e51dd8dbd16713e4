"""Where a guest's files are on this host, and what the host writes down of guests that come and go."""

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
    """One guest's directory; that it exists is what makes a domain ours.

    Hosts may share the folder it is in. Then its owner, the host where the guest lives, is who may remove it.
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
        """What the guest said on the host it came from."""
        return self.directory / "console.earlier"

    def owner(self) -> str:
        """The host it belongs to; "" when nobody has it, or no host wrote itself down yet."""
        try:
            return (self.directory / "owner").read_text().strip()
        except FileNotFoundError:
            return ""

    def own(self, host: str) -> None:
        """The guest lives at this host now; its directory is made if it is not there."""
        self.directory.mkdir(exist_ok=True)
        if self.owner() != host:
            _write(self.directory / "owner", f"{host}\n")

    def is_of(self, host: str) -> bool:
        """Whether it lives at this host, or nowhere: hosts may share the folder."""
        return self.owner() in ("", host)

    def disown(self, host: str) -> None:
        """The guest does not live at this host any more, and its files are there for another one."""
        if self.owner() == host:
            (self.directory / "owner").unlink(missing_ok=True)

    def console_tail(self) -> str:
        """The end of the serial console, from the first whole line on."""
        now = _tail(self.console)
        before = _tail(self.earlier_console) if len(now) < CONSOLE_BYTES else b""
        kept = (before + now)[-CONSOLE_BYTES:]
        if len(kept) == CONSOLE_BYTES:
            kept = kept.partition(b"\n")[2]
        return kept.decode(errors="replace").replace("\r\n", "\n")

    def trim_console(self) -> None:
        """Keep a chatty guest from filling the host; only called while no QEMU has the file."""
        if self.console.exists() and self.console.stat().st_size > TRIM_ABOVE:
            self.console.write_text(self.console_tail())
            self.earlier_console.unlink(missing_ok=True)

    def remember_console(self, text: str) -> None:
        """What it said where it was before; the same again changes nothing."""
        _write(self.earlier_console, text)

    def remove(self, host: str) -> None:
        """Unless it belongs to another host by now."""
        if self.is_of(host):
            shutil.rmtree(self.directory, ignore_errors=True)


def files_of(guests: Path, uuid: str) -> GuestFiles:
    """Never a path outside `guests`, whatever the caller passes as UUID."""
    if not UUID.fullmatch(uuid):
        raise GuestNotFound(f"{uuid!r} is no UUID")
    return GuestFiles(guests / uuid)


class GuestRecords:
    """What a host writes down of some of its guests, one small file each; there, whole, or not at all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def read(self, uuid: str) -> dict[str, Any]:
        """{} when there is none."""
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
        """The guests there are notes of."""
        return {entry.name for entry in self._directory.iterdir()}


def host_id(state: Path) -> str:
    """Who this host is, made up once, for what hosts with shared storage write there."""
    file = state / "host-id"
    if not file.exists():
        new = file.with_name(f"host-id.{uuid4().hex}")
        new.write_text(f"{uuid4()}\n")
        with suppress(FileExistsError):  # of two processes that do this at once, the first is right
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
    """Whole or not at all."""
    new = file.with_name(f".{file.name}.{uuid4().hex}")
    new.write_text(text)
    new.replace(file)
