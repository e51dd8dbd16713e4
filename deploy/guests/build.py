"""Build the guests that tests and demonstrations boot: python -m deploy.guests.build OUTDIR.

    tiny-linux.qcow2   Debian cloud kernel + busybox; ready in 3 s; wants 96 MB
    micro.img          512 bytes; ready in 0.2 s; wants 16 MB; obeys the power button
    micro-slow.img     ready after 5 s, off 3 s after the power button
    micro-deaf.img     never obeys the power button
    micro-dirty.img    keeps changing its memory, and counts aloud
    micro-ticks.img    only counts aloud

No root, no loop mount, nothing installed; what is up to date is left alone.
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
    """Build what is missing or older than its sources, and return all the images."""
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
    """The tiny Linux with QEMU's agent, which only tests want, and which hears nothing else. Built once."""
    image = outdir / "tiny-linux-agent.qcow2"
    _unless_current(image, LINUX, partial(linux.build, cache=outdir / "cache", agent=True))
    return image


def _unless_current(image: Path, sources: tuple[str, ...], make: Callable[[Path], None]) -> None:
    newest = max((HERE / source).stat().st_mtime for source in sources)
    if image.exists() and image.stat().st_mtime >= newest:
        return
    unfinished = image.with_name(f".{image.name}.{os.getpid()}")  # several may build at once
    try:
        make(unfinished)
        unfinished.replace(image)
    finally:
        unfinished.unlink(missing_ok=True)


def main() -> int:
    """The command line."""
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
