"""Whether guests went down with their host, or by themselves while nobody looked. Plain files, no Django.

Only the first are to be started again when the host is back; a guest that shut itself down stays off.
"""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SEEN, _STOPPED = "boot-id", "guests-stopped-with-host"


def expect_boot(folder: Path) -> None:
    """Said by whoever stops guests because their host goes down, in the host's state folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STOPPED).touch()


def host_booted(folder: Path) -> bool:
    """True when the machine booted, or its guests were stopped with it, since `remember`."""
    seen = folder / _SEEN
    rebooted = seen.is_file() and seen.read_text() != BOOT_ID.read_text()
    return rebooted or (folder / _STOPPED).exists()


def record_boot(folder: Path) -> None:
    """The guests of this boot are looked after: what is off from now on went off by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SEEN).write_text(BOOT_ID.read_text())
    (folder / _STOPPED).unlink(missing_ok=True)
