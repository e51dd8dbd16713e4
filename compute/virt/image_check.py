"""Checks that an image file matches its record and is safe to pass to QEMU.

A qcow2 header can name other files of the host (a backing file, an external data file), and every tool that opens the
image reads them for the guest (CVE-2024-32498). So the header is checked before qemu-img or QEMU opens the file.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from compute.virt.base import Image, ImageUnusable

QCOW2_MAGIC = b"QFI\xfb"
HEADER = struct.Struct(">4sIQIIQ")  # magic, version, backing offset, its length, cluster bits, size
EXTERNAL_DATA_FILE = 1 << 2
KNOWN_INCOMPATIBLE = 0b11111  # dirty, corrupt, data file, compression type, extended L2
CHUNK = 1 << 20


def check(path: Path, image: Image) -> int:
    """Return the virtual size in bytes. Raises ImageUnusable with the reason."""
    size = _size(path, image)
    _check_sum(path, image)
    with path.open("rb") as file:
        head = file.read(112)
    is_qcow2 = head.startswith(QCOW2_MAGIC)
    if image.disk_format == "qcow2":
        if not is_qcow2:
            raise ImageUnusable(f"image {image.id} is registered as qcow2 but is none")
        return _check_qcow2(head, image)
    if image.disk_format != "raw":
        raise ImageUnusable(f"image {image.id} is {image.disk_format}; raw or qcow2 do")
    if is_qcow2:
        raise ImageUnusable(f"image {image.id} is registered as raw but is qcow2")
    return size


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
        raise ImageUnusable(
            f"image {image.id} has checksum {digest.hexdigest()}, its record says {image.checksum}"
        )


def _check_qcow2(head: bytes, image: Image) -> int:
    if len(head) < 72:
        raise ImageUnusable(f"image {image.id} ends inside its qcow2 header")
    _, version, backing, _, _, virtual_size = HEADER.unpack_from(head)
    if version not in (2, 3):
        raise ImageUnusable(f"image {image.id} is qcow2 version {version}; 2 or 3 do")
    if backing:
        raise ImageUnusable(f"image {image.id} names a backing file; only standalone images do")
    if version == 3:
        if len(head) < 104:
            raise ImageUnusable(f"image {image.id} ends inside its qcow2 header")
        (incompatible,) = struct.unpack_from(">Q", head, 72)
        if incompatible & EXTERNAL_DATA_FILE:
            raise ImageUnusable(f"image {image.id} keeps its data in another file")
        if incompatible & ~KNOWN_INCOMPATIBLE:
            raise ImageUnusable(f"image {image.id} uses qcow2 features unknown here")
    return virtual_size


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
