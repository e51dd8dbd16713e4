"""Disk images in memory: honest ones, and ones that reach for other files."""

from __future__ import annotations

import struct
import subprocess


def qcow2(backing: int = 0, features: int = 0, size: int = 1 << 20, version: int = 3) -> bytes:
    """A header; with nothing behind it qemu-img would refuse it, our own reader sees what it needs."""
    start = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", version, backing, 0, 16, size, 0, 1, 196608, 65536, 1, 0, 0)
    return (start + struct.pack(">QQQII", features, 0, 0, 4, 104)).ljust(65536, b"\0")


def made_by_qemu(tmp_path, disk_format: str, *options: str, size: str = "1M") -> bytes:
    path = tmp_path / f"made.{disk_format}"
    disk_format = {"vhd": "vpc"}.get(disk_format, disk_format)
    subprocess.run(["qemu-img", "create", "-q", "-f", disk_format, *options, path, size], check=True)
    return path.read_bytes()


def vmdk(
    kind: str = "monolithicSparse", extents: tuple[str, ...] = ('RW 2048 SPARSE "x.vmdk"',), capacity=2048,
    footer: bytes = b"",
) -> bytes:  # fmt: skip
    """One with a `footer` says so in its header; a footer counts more than the header."""
    lines = ["# Disk DescriptorFile", "version=1", f'createType="{kind}"', *extents]
    head = vmdk_header(capacity, tables=(1 << 64) - 1 if footer else 0)
    return head + "\n".join(lines).encode().ljust(20 * 512, b"\0") + footer


def vmdk_header(capacity: int = 2048, descriptor: int = 1, tables: int = 0) -> bytes:
    """`tables` is where the grain tables are, in sectors: all ones for "see the footer"."""
    fields = struct.pack("<4sIIQQQQIQQ", b"KDMV", 1, 3, capacity, 128, descriptor, 20, 0, 0, tables)
    return fields.ljust(512, b"\0")


def vmdk_footer(descriptor: int = 1) -> bytes:
    """The last three sectors of a streamed file: a marker, a second header, the end of the stream."""
    return struct.pack("<QII", 1, 0, 3).ljust(512, b"\0") + vmdk_header(descriptor=descriptor) + bytes(512)
