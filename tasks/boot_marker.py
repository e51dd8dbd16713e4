"""Marker files: did guests go down with their host, or by themselves while no worker ran? Plain files, no Django.

Only the first are started again when the host is back; a guest that shut itself down stays off.
"""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SEEN, _STOPPED = "boot-id", "guests-stopped-with-host"


def expect_boot(folder: Path) -> None:
    """Record in the host's state folder that guests are stopped because their host goes down."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STOPPED).touch()


def host_booted(folder: Path) -> bool:
    """Return whether the machine booted, or its guests were stopped with it, since `record_boot`."""
    seen = folder / _SEEN
    rebooted = seen.is_file() and seen.read_text() != BOOT_ID.read_text()
    return rebooted or (folder / _STOPPED).exists()


def record_boot(folder: Path) -> None:
    """Record that the guests of this boot are handled: a guest that goes off from now on did so by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SEEN).write_text(BOOT_ID.read_text())
    (folder / _STOPPED).unlink(missing_ok=True)
