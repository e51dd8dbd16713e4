"""Where a guest's files are on this host."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from compute.virt.base import GuestNotFound

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CONSOLE_BYTES = 256 << 10  # what console_output returns at most, and what survives a trim
TRIM_ABOVE = 4 << 20


@dataclass(frozen=True, slots=True)
class GuestFiles:
    """One guest's directory; that it exists is what makes a domain ours."""

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    def console_tail(self) -> str:
        """The end of the serial console, from the first whole line on."""
        try:
            with self.console.open("rb") as file:
                start = max(0, os.fstat(file.fileno()).st_size - CONSOLE_BYTES)
                file.seek(start)
                kept = file.read(CONSOLE_BYTES)
        except FileNotFoundError:
            return ""
        if start:
            kept = kept.partition(b"\n")[2]
        return kept.decode(errors="replace").replace("\r\n", "\n")

    def trim_console(self) -> None:
        """Keep a chatty guest from filling the host; only called while no QEMU has the file."""
        if self.console.exists() and self.console.stat().st_size > TRIM_ABOVE:
            self.console.write_text(self.console_tail())

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def files_of(guests: Path, uuid: str) -> GuestFiles:
    """Never a path outside `guests`, whatever the caller passes as UUID."""
    if not UUID.fullmatch(uuid):
        raise GuestNotFound(f"{uuid!r} is no UUID")
    return GuestFiles(guests / uuid)
