"""Check the headers of a disk image, with oslo.utils, before any tool opens the file. Plain Python, for hosts too.

A disk image can name other files: a backing file, an external data file (CVE-2024-32498), extents. Every tool that
opens such an image reads those files, and a guest would get them. Import this module where an image is checked only:
loading oslo.utils takes as long as the rest of a small process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oslo_utils.imageutils import format_inspector as oslo

CHUNK = 4096  # oslo.utils misses regions that begin in one chunk and are announced in the same
LARGEST = (1 << 63) - 1
ONE_PIECE = "only one-piece vmdk files (monolithicSparse, streamOptimized) are taken"
REASONS = {"backing_file": "it has a backing file", "data_file": "its data is in another file"}


class ImageRefused(Exception):
    """Using the image is not safe. The text is a main clause: "it has a backing file"."""


class Qcow2Inspector(oslo.QcowInspector):
    """oslo.utils knows the incompatible features 0 to 3; bit 4 (extended L2 entries) names no file either."""

    I_FEATURES_MAX_BIT = 5


INSPECTORS: dict[str, Callable[[], oslo.FileInspector]] = {
    "qcow2": Qcow2Inspector, "vmdk": oslo.VMDKInspector, "iso": oslo.ISOInspector,
}  # fmt: skip
NOT_RAW = (
    oslo.QcowInspector, oslo.QEDInspector, oslo.VMDKInspector, oslo.VHDInspector, oslo.VHDXInspector, oslo.VDIInspector,
)  # fmt: skip


def virtual_size(path: Path, disk_format: str) -> int:
    """Return the virtual size in bytes of a file whose format is one of INSPECTORS. Raises ImageRefused."""
    try:
        return _inspect(path, INSPECTORS[disk_format]())
    except OSError:
        raise
    except oslo.SafetyCheckFailed as unsafe:
        reason = next((REASONS[name] for name in unsafe.failures if name in REASONS), _not(disk_format))
        raise ImageRefused(reason) from unsafe
    except Exception as exc:  # a parser of untrusted bytes fails in many ways, and each of them is a refusal
        raise ImageRefused(_not(disk_format)) from exc


def format_of(path: Path) -> str:
    """Return the disk format whose header a file begins with; "" for none of them, which a raw disk should have."""
    with path.open("rb") as file:
        head = file.read(512)
    for kind in NOT_RAW:
        inspector = kind()
        with suppress(oslo.ImageFormatError):
            inspector.eat_chunk(head)
        if inspector.format_match:
            return str(inspector)
    return ""


def _inspect(path: Path, inspector: oslo.FileInspector) -> int:
    with path.open("rb") as file:
        while not inspector.complete and (chunk := file.read(CHUNK)):
            inspector.eat_chunk(chunk)
    inspector.finish()
    inspector.safety_check()
    if isinstance(inspector, oslo.VMDKInspector):
        _check_one_piece(inspector)
    if inspector.virtual_size > LARGEST:
        raise oslo.ImageFormatError("impossible size")
    return int(inspector.virtual_size)


def _check_one_piece(vmdk: oslo.VMDKInspector) -> None:
    """Raise ImageFormatError for data in other files: at a capacity of 0 QEMU takes them from the descriptor."""
    lines = [line.strip() for line in (vmdk.desc_text or "").splitlines()]
    for starts in (("rw", "rdonly", "noaccess"), ("createtype",)):
        if sum(line.startswith(starts) for line in lines) != 1:
            raise oslo.ImageFormatError("ambiguous descriptor")
    if not vmdk.has_region("header") or not vmdk.virtual_size:
        raise oslo.ImageFormatError("several files")


def _not(disk_format: str) -> str:
    return ONE_PIECE if disk_format == "vmdk" else f"it is not of the declared format {disk_format}"
