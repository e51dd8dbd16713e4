"""Build the guest images that tests and demonstrations boot: python -m deploy.guests.build OUTDIR.

    tiny-linux.qcow2   Debian cloud kernel + busybox; ready in 3 s; needs 96 MB
    micro.img          512 bytes of code; ready in 0.2 s; needs 16 MB; obeys the power button
    micro-slow.img     ready after 5 s; powers off 3 s after the power button
    micro-deaf.img     ignores the power button
    micro-dirty.img    rewrites its memory all the time, and prints a counter
    micro-ticks.img    only prints a counter

The build needs no root and no loop mount, and installs nothing. An image that is newer than its sources is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deploy.guests import linux, micro
from deploy.guests.tools import CannotBuild

HERE = Path(__file__).parent
LINUX = ("linux.py", "init.sh", "cpio.py")


def build(outdir: Path, *, micro_only: bool = False) -> list[Path]:
    """Build the images that are missing or older than their sources. Return the paths of all images of the build."""
    outdir.mkdir(parents=True, exist_ok=True)
    images = []
    for guest in micro.FAMILY:
        image = outdir / f"{guest.name}.img"
        _unless_current(image, ("micro.S", "micro.py"), partial(micro.build, guest=guest))
        images.append(image)
    if not micro_only:
        image = outdir / "tiny-linux.qcow2"
        _unless_current(image, LINUX, partial(linux.build, cache=outdir / "cache"))
        images.append(image)
    return images


def with_agent(outdir: Path) -> Path:
    """Build the tiny Linux that obeys only QEMU's guest agent, unless it is up to date. Only tests need it."""
    image = outdir / "tiny-linux-agent.qcow2"
    _unless_current(image, LINUX, partial(linux.build, cache=outdir / "cache", agent=True))
    return image


def _unless_current(image: Path, sources: tuple[str, ...], make: Callable[[Path], None]) -> None:
    newest = max((HERE / source).stat().st_mtime for source in sources)
    if image.exists() and image.stat().st_mtime >= newest:
        return
    unfinished = image.with_name(f".{image.name}.{os.getpid()}")  # several builds may run at once
    try:
        make(unfinished)
        unfinished.replace(image)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> int:
    """Run the command line; the exit code is 1 when a tool or a package is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--micro-only", action="store_true", help="only the boot-sector guests")
    options = parser.parse_args()
    try:
        images = build(options.outdir, micro_only=options.micro_only)
    except CannotBuild as reason:
        print(f"cannot build the guests: {reason}", file=sys.stderr)
        return 1
    for image in images:
        print(f"{image.stat().st_size:>10} {image}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
