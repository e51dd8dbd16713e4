"""Programs and Debian packages that the guest builder uses. CannotBuild names the missing one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

SECONDS = 300


class CannotBuild(Exception):
    """A tool or a package is missing, or a program failed; the text says which."""


def need(program: str, package: str) -> None:
    """Raise CannotBuild, with the package to install, when `program` is missing."""
    if shutil.which(program) is None:
        raise CannotBuild(f"{program} is not installed: apt-get install {package}")


def run(*argv: str | Path, cwd: Path | None = None, feed: str | None = None) -> str:
    """Run a program and return its stdout. Raises CannotBuild when it fails, TimeoutExpired after SECONDS."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd, input=feed, check=True, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.CalledProcessError as failed:
        raise CannotBuild(f"{argv[0]} failed: {failed.stderr.strip()[-500:]}") from failed
    return done.stdout


def unpacked(package: str, cache: Path) -> Path:
    """Return the folder with the files of a Debian package, which is downloaded once and never installed."""
    target = cache / "unpacked" / package
    if not target.exists():
        partial = target.with_name(target.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        run("dpkg-deb", "-x", _download(package, cache), partial)
        partial.rename(target)
    return target


def kernel_package() -> str:
    """Return the name of Debian's current kernel package for virtual machines. Raises CannotBuild."""
    need("apt-cache", "apt")
    found = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", "linux-image-cloud-amd64"))
    if found is None:
        raise CannotBuild("apt knows no package linux-image-cloud-amd64: run apt-get update")
    return found.group(1)


def _download(package: str, cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    if not list(cache.glob(f"{package}_*.deb")):
        run("apt-get", "download", package, cwd=cache)
    return sorted(cache.glob(f"{package}_*.deb"))[-1]
