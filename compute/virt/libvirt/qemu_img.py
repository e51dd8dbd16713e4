"""Calls of qemu-img. Formats are named, never probed; wall time is limited, for foreign images also memory and CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compute.virt.base import (
    ImageUnusable,
    InsufficientResources,
    NotSupported,
    OperationTimedOut,
    VirtError,
)

INFO_SECONDS = 30
CREATE_SECONDS = 60
CONVERT_SECONDS = 3600
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 30


def virtual_size(path: Path, disk_format: str) -> int:
    """Return the image's virtual size in bytes. Raises ImageUnusable, also for a file that names other files."""
    # prlimit(1) instead of preexec_fn: a worker has threads, and Python code after a fork may deadlock
    limits = ["prlimit", f"--as={MEMORY_BYTES}", f"--cpu={CPU_SECONDS}", "--"]
    command = ["qemu-img", "info", "--output=json", "-f", disk_format, str(path)]
    try:
        said = json.loads(_run([*limits, *command], INFO_SECONDS))
    except (VirtError, ValueError) as error:
        raise ImageUnusable(f"{path.name} cannot be read as {disk_format}: {error}") from error
    specific = said.get("format-specific", {}).get("data", {})
    if said.get("backing-filename") or specific.get("data-file"):
        raise ImageUnusable(f"{path.name} names other files; only standalone images do")
    return int(said["virtual-size"])


def virtual_size_in_use(disk: Path) -> int:
    """Return the virtual size in bytes of a guest's own disk, which QEMU may have open."""
    command = ["qemu-img", "info", "-U", "--output=json", "-f", "qcow2", str(disk)]
    return int(json.loads(_run(command, INFO_SECONDS))["virtual-size"])


def create_overlay(target: Path, base: Path, base_format: str, size: int) -> None:
    """Create a qcow2 disk of `size` bytes whose unwritten parts are read from `base`."""
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(base), "-F", base_format]
    _run([*command, str(target), str(size)], CREATE_SECONDS)


def convert(source: Path, target: Path, *, compress: bool = False) -> None:
    """Copy a qcow2 disk with everything it is based on into one file; -U: another process may have it open."""
    command = ["qemu-img", "convert", "-U", "-f", "qcow2", "-O", "qcow2"]
    _run([*command, *(["-c"] if compress else []), str(source), str(target)], CONVERT_SECONDS)


def stands_alone(disk: Path) -> bool:
    """Return whether a guest's own disk has no backing file. Raises VirtError when a QEMU has it open."""
    command = ["qemu-img", "info", "--output=json", "-f", "qcow2", str(disk)]
    return not json.loads(_run(command, INFO_SECONDS)).get("backing-filename")


def measure(disk: Path) -> int:
    """Return the size in bytes of a qcow2 file with all content of the disk and what it is based on."""
    command = ["qemu-img", "measure", "--output=json", "-f", "qcow2", "-O", "qcow2", str(disk)]
    return int(json.loads(_run(command, INFO_SECONDS))["required"])


def grow(disk: Path, size: int) -> None:
    """Make a disk larger, to `size` bytes; its content stays."""
    _run(["qemu-img", "resize", "-q", "-f", "qcow2", str(disk), str(size)], CREATE_SECONDS)


@contextmanager
def converting(source: Path, target: Path) -> Iterator[Callable[[float], bool]]:
    """Convert in the background. Yields a function that waits so many seconds and returns whether it has ended.

    Leaving the block kills a conversion that still runs.
    """
    command = ["qemu-img", "convert", "-f", "qcow2", "-O", "qcow2", str(source), str(target)]
    _must_be_there("qemu-img")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:

        def ended(seconds: float) -> bool:
            with suppress(subprocess.TimeoutExpired):
                _must_be_well(process.wait(seconds), process.stderr.read() if process.stderr else "")
                return True
            return False

        try:
            yield ended
        finally:
            process.kill()


def _run(command: list[str], seconds: float) -> str:
    for program in (command[0], "qemu-img"):
        _must_be_there(program)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise OperationTimedOut(f"qemu-img did not end within {seconds:g} s") from error
    _must_be_well(done.returncode, done.stderr)
    return done.stdout


def _must_be_there(program: str) -> None:
    if shutil.which(program) is None:
        raise NotSupported(f"{program} is not installed on this host")


def _must_be_well(code: int, said: str) -> None:
    if code == 0:
        return
    text = said.strip()[-500:]
    kind = InsufficientResources if "no space left" in text.lower() else VirtError
    raise kind(f"qemu-img: {text or f'ended with {code}'}")
