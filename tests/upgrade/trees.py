"""Source trees of other versions: an older commit, and a newer version that knows a step this one does not."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = Path("compute/operations/versions.py")
NEWEST = 1000  # Service.version of the newer tree
BLINK = f'''
"""Pause and unpause: an action that only the newer version knows."""

from compute.operations.action import On, ServerAction, StepContext, StepSpec
from compute.state import Move, TaskState, VmState


class Blink(ServerAction):
    """Active -> active."""

    key = name = "blink"
    policy = "os_compute_api:os-pause-server:pause"
    move = Move(frozenset({{VmState.ACTIVE}}), TaskState.PAUSING, VmState.ACTIVE)
    steps = (
        StepSpec("look", "conductor_look", On.CONDUCTOR, known_since={NEWEST}),
        StepSpec("blink", "compute_blink_instance", known_since={NEWEST}),
    )

    def look(self, run: StepContext) -> None:
        """Nothing: that it runs is enough."""

    def blink(self, run: StepContext) -> None:
        """Pause and unpause the guest."""
        run.hypervisor.pause(run.instance.uuid)
        run.hypervisor.unpause(run.instance.uuid)
'''


def newer(folder: Path) -> Path:
    """A copy of this checkout, as it lies there, with one action more."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "compute/actions/blink.py").write_text(BLINK)
    source = (folder / VERSIONS).read_text()
    line = next(line for line in source.splitlines() if line.startswith("CURRENT = "))
    (folder / VERSIONS).write_text(source.replace(line, f"CURRENT = {NEWEST}"))
    return _with_environment(folder)


def older(folder: Path, ref: str) -> Path:
    """The files of a commit. Raises CalledProcessError when this clone does not have it."""
    packed = subprocess.run(["git", "archive", ref], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return _with_environment(folder)


def _with_environment(folder: Path) -> Path:
    """With a Python environment: ours, unless its pinned packages are others."""
    pinned = "requirements.txt"
    if (folder / pinned).read_bytes() == (ROOT / pinned).read_bytes():
        (folder / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
        return folder
    subprocess.run([sys.executable, "-m", "venv", str(folder / ".venv")], check=True)
    pip = [str(folder / ".venv/bin/python"), "-m", "pip", "install", "--quiet", "-r", pinned]
    subprocess.run(pip, cwd=folder, check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return folder
