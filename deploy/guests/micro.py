"""The boot-sector guests: real machines with 512 bytes of code (micro.S), ready in 0.2 s."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.guests.tools import need, run

SOURCE = Path(__file__).with_name("micro.S")
DISK_BYTES = 1 << 20  # SeaBIOS refuses a virtio disk of a few KiB


@dataclass(frozen=True, slots=True)
class Micro:
    """How one boot-sector guest behaves. Durations are whole seconds."""

    name: str
    shutdown_delay: int = 0  # between the power button and power off
    ready_after: int = 0  # button presses before that are lost
    ignore_acpi: bool = False
    leaves: bool = False  # powers itself off, shutdown_delay seconds after it is ready
    dirty: bool = False  # rewrites 2 MiB of memory 18 times a second
    ticks: bool = False  # prints a counter about once a second


FAMILY = (
    Micro("micro"),
    Micro("micro-slow", shutdown_delay=3, ready_after=5),
    Micro("micro-deaf", ignore_acpi=True),
    Micro("micro-dirty", dirty=True, ticks=True),
    Micro("micro-ticks", ticks=True),
)


def build(target: Path, guest: Micro) -> None:
    """Assemble micro.S and write the guest's behaviour into its parameter block."""
    need("as", "binutils")
    need("ld", "binutils")
    with tempfile.TemporaryDirectory() as scratch:
        objects, sector = Path(scratch, "micro.o"), Path(scratch, "micro.bin")
        run("as", "--32", "-o", objects, SOURCE)
        link = ("-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary")
        run("ld", *link, "-o", sector, objects)
        code = bytearray(sector.read_bytes())
    at = code.index(b"SWPARAMS") + 8
    code[at : at + 5] = bytes(
        [guest.shutdown_delay, guest.ready_after, 2 if guest.leaves else guest.ignore_acpi, guest.dirty, guest.ticks]
    )
    code[at + 5 : at + 21] = guest.name.encode()[:15].ljust(16, b"\0")
    target.write_bytes(bytes(code).ljust(DISK_BYTES, b"\0"))
