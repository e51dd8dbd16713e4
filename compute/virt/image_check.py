"""Checks that an image file matches its record and is safe to pass to QEMU.

The header is checked before qemu-img or QEMU opens the file: they read every file that it names (CVE-2024-32498).
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from compute.virt.base import Image, ImageUnusable

QCOW2_MAGIC = b"QFI\xfb"
CHUNK = 1 << 20


def check(path: Path, image: Image) -> int:
    """Return the virtual size in bytes. Raises ImageUnusable with the reason."""
    size = _size(path, image)
    _check_sum(path, image)
    if image.disk_format not in ("raw", "qcow2"):
        raise ImageUnusable(f"image {image.id} is {image.disk_format}; raw or qcow2 do")
    return _check_header(path, image, size)


def _size(path: Path, image: Image) -> int:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ImageUnusable(f"image {image.id} came without any content") from None
    if image.size and size != image.size:
        raise ImageUnusable(f"image {image.id} has {size} bytes, its record says {image.size}")
    return size


def _check_sum(path: Path, image: Image) -> None:
    if not image.checksum:
        return
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != image.checksum.lower():
        raise ImageUnusable(f"image {image.id} has checksum {digest.hexdigest()}, its record says {image.checksum}")


def _check_header(path: Path, image: Image, size: int) -> int:
    """Return the virtual size: of a qcow2 from its header; of a raw image, which may have no other header, `size`."""
    from cloud.images import inspection  # noqa: PLC0415  loads oslo.utils, which few processes need

    try:
        if image.disk_format == "qcow2":
            return inspection.virtual_size(path, "qcow2")
    except inspection.ImageRefused as refused:
        raise ImageUnusable(f"image {image.id} is refused: {refused}") from refused
    if found := inspection.format_of(path):
        raise ImageUnusable(f"image {image.id} is registered as raw but is {found}")
    return size


def write_empty_qcow2(target: Path, virtual_size: int) -> None:
    """Write a minimal valid qcow2 (version 2) full of zeros, for hosts without qemu-img. `virtual_size` in bytes."""
    cluster = 1 << 16
    l1_entries = max(1, -(-virtual_size // (cluster * cluster // 8)))
    header = struct.pack(
        ">4sIQIIQIIQQIIQ",
        QCOW2_MAGIC, 2, 0, 0, 16, virtual_size, 0, l1_entries, 3 * cluster, cluster, 1, 0, 0,
    )  # fmt: skip
    l1_clusters = -(-l1_entries * 8 // cluster)
    with target.open("wb") as out:
        out.write(header)
        out.seek(cluster)
        out.write(struct.pack(">Q", 2 * cluster))  # refcount table: one block
        out.seek(2 * cluster)
        out.write(b"\0\1" * (3 + l1_clusters))  # header, table, block, L1 are in use
        out.truncate((3 + l1_clusters) * cluster)
