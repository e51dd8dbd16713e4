"""Check that an uploaded file has the declared format and names no other file.

A disk image can name other files: a backing file, an external data file (CVE-2024-32498), extents. A host that opened
such an image would give its own files to a guest. So headers are read here first; qemu-img, which opens what an image
names, only gets files whose headers name no other file.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cloud import errors, log

logger = log.get(__name__)
PLAIN = frozenset({"raw", "iso", "aki", "ami", "ari"})
QEMU_NAMES = {"qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}
FORMATS = (*sorted(PLAIN), *QEMU_NAMES)
_VMDK_TYPES = frozenset({"monolithicSparse", "streamOptimized"})
_LARGEST = (1 << 63) - 1
_LIMITS = ("--as=1073741824", "--cpu=30", "--fsize=1048576", "--core=0")
_SECONDS = 60
_QCOW2 = struct.Struct(">4sIQIIQ")  # magic, version, backing offset and length, cluster bits, size
_QCOW2_DATA_FILE = 1 << 2
_VMDK = struct.Struct("<4sIIQQQQ")  # magic, version, flags, capacity, grain, descriptor offset and size


def inspect(path: Path, disk_format: str) -> int:
    """Return the virtual size in bytes. Raises BadRequest for content that is refused."""
    if disk_format in PLAIN:
        if disk_format == "iso":
            _iso(path)
        return path.stat().st_size
    size = _HEADERS.get(disk_format, _no_header)(path)
    if shutil.which("qemu-img") is None:
        if size is None:
            raise errors.BadRequest(f"This cloud cannot check images of format {disk_format} now.")
        return size
    return _judge(_qemu_info(path, QEMU_NAMES[disk_format]), disk_format)


def _iso(path: Path) -> None:
    with path.open("rb") as file:
        file.seek(0x8001)
        if file.read(5) != b"CD001":
            raise _not("iso")


def _qcow2(path: Path) -> int | None:
    with path.open("rb") as file:
        header = file.read(104)
    if len(header) < 72 or header[:4] != b"QFI\xfb":
        raise _not("qcow2")
    _, version, backing_offset, _, _, size = _QCOW2.unpack_from(header)
    if version not in (2, 3) or (version == 3 and len(header) < 104):
        raise _not("qcow2")
    if backing_offset:
        raise errors.BadRequest("Image content is refused: it has a backing file.")
    if version == 3 and int.from_bytes(header[72:80], "big") & _QCOW2_DATA_FILE:
        raise errors.BadRequest("Image content is refused: its data is in another file.")
    return size


def _vmdk(path: Path) -> int | None:
    with path.open("rb") as file:
        header = file.read(512)
        if len(header) < 512 or header[:4] != b"KDMV":  # also refuses descriptor files, which list other files
            raise _not("vmdk (monolithicSparse or streamOptimized)")
        _, _, _, capacity, _, offset, sectors = _VMDK.unpack_from(header)
        if not capacity or not offset or not 0 < sectors <= 2048 or offset > 1 << 20:
            raise _refused_vmdk()  # qemu would take the extents from the descriptor
        file.seek(offset * 512)
        text = file.read(sectors * 512).split(b"\0", 1)[0].decode("utf-8", "replace")
    kinds = {line.partition("=")[2].strip().strip('"') for line in text.splitlines() if _is_kind(line)}
    extents = [line for line in text.splitlines() if line.strip().startswith(("RW ", "RDONLY ", "NOACCESS "))]
    if len(kinds) != 1 or not kinds <= _VMDK_TYPES or len(extents) > 1 or any("/" in one for one in extents):
        raise _refused_vmdk()
    return None


def _is_kind(line: str) -> bool:
    return line.partition("=")[0].strip().lower() == "createtype"


def _no_header(path: Path) -> int | None:
    return None  # qemu follows no names of files in these formats


_HEADERS = {"qcow2": _qcow2, "vmdk": _vmdk}


def _qemu_info(path: Path, qemu_format: str) -> dict[str, Any]:
    """Return the output of qemu-img, run with limits on memory, time and output."""
    command = ["prlimit", *_LIMITS, "--", "qemu-img", "info", "--output=json", "-f", qemu_format, str(path)]
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise errors.BadRequest("Image content is refused: looking at it took too long.") from exc
        if done.returncode:
            logger.warning(
                "image.content_refused", file=path.name, said=done.stderr[-300:].decode("utf-8", "replace")
            )
            raise _not(qemu_format)
        out.seek(0)
        return json.loads(out.read())


def _judge(info: dict[str, Any], disk_format: str) -> int:
    details = info.get("format-specific", {}).get("data", {})
    if info.get("format") != QEMU_NAMES[disk_format]:
        raise _not(disk_format)
    if "backing-filename" in info or "full-backing-filename" in info:
        raise errors.BadRequest("Image content is refused: it has a backing file.")
    if details.get("data-file") or details.get("data-file-raw"):
        raise errors.BadRequest("Image content is refused: its data is in another file.")
    if details.get("corrupt"):
        raise errors.BadRequest("Image content is refused: it is marked corrupt.")
    if disk_format == "vmdk" and details.get("create-type") not in _VMDK_TYPES:
        raise _refused_vmdk()
    size = info.get("virtual-size")
    if not isinstance(size, int) or not 0 <= size <= _LARGEST:
        raise _not(disk_format)
    return size


def _not(disk_format: str) -> errors.BadRequest:
    return errors.BadRequest(f"Image content is refused: it is not of the declared format {disk_format}.")


def _refused_vmdk() -> errors.BadRequest:
    return errors.BadRequest(
        "Image content is refused: only one-piece vmdk files (monolithicSparse, streamOptimized) are taken."
    )
