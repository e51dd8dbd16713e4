"""Check that an uploaded file has the declared format and names no other file.

qemu-img opens the files that an image names, so it only gets images whose headers name none: `inspection`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cloud import errors, log

logger = log.get(__name__)
INSPECTED = frozenset({"qcow2", "vmdk", "iso"})  # qemu follows no names of files in the other formats
PLAIN = frozenset({"raw", "iso", "aki", "ami", "ari"})
QEMU_NAMES = {"qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx"}
FORMATS = (*sorted(PLAIN), *QEMU_NAMES)
_VMDK_TYPES = frozenset({"monolithicSparse", "streamOptimized"})
_LIMITS = ("--as=1073741824", "--cpu=30", "--fsize=1048576", "--core=0")
_SECONDS = 60


def inspect(path: Path, disk_format: str) -> int:
    """Return the virtual size in bytes. Raises BadRequest for content that is refused."""
    virtual_size = _check_header(path, disk_format) if disk_format in INSPECTED else 0
    if disk_format in PLAIN:
        return path.stat().st_size
    if shutil.which("qemu-img") is None:
        if disk_format != "qcow2":
            raise errors.BadRequest(f"This cloud cannot check images of format {disk_format} now.")
        return virtual_size
    return _judge(_qemu_info(path, QEMU_NAMES[disk_format]), disk_format)


def _check_header(path: Path, disk_format: str) -> int:
    from cloud.images import inspection  # noqa: PLC0415  loads oslo.utils, which the other requests do not need

    try:
        return inspection.virtual_size(path, disk_format)
    except inspection.ImageRefused as refused:
        raise _refused(str(refused)) from refused


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
            raise _refused("the check took too long") from exc
        if done.returncode:
            logger.warning("image.format_refused", file=path.name, detail=done.stderr[-300:].decode("utf-8", "replace"))
            raise _not(qemu_format)
        out.seek(0)
        return json.loads(out.read())


def _judge(info: dict[str, Any], disk_format: str) -> int:
    details = info.get("format-specific", {}).get("data", {})
    if info.get("format") != QEMU_NAMES[disk_format]:
        raise _not(disk_format)
    if "backing-filename" in info or "full-backing-filename" in info:
        raise _refused("it has a backing file")
    if details.get("data-file") or details.get("data-file-raw"):
        raise _refused("its data is in another file")
    if details.get("corrupt"):
        raise _refused("it is marked corrupt")
    if disk_format == "vmdk" and details.get("create-type") not in _VMDK_TYPES:
        raise _not(disk_format)
    size = info.get("virtual-size")
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise _not(disk_format)
    return size


def _not(disk_format: str) -> errors.BadRequest:
    return _refused(f"it is not of the declared format {disk_format}")


def _refused(reason: str) -> errors.BadRequest:
    return errors.BadRequest(f"Image content is refused: {reason}.")
