"""How a process was started, and a second one of the same name beside it: as a unit of systemd and a person may do.

The younger one of the two is the worker; the other one finds another incarnation in its service record and stops.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from cloud.processes import alive, gone, with_command
from tests.chaos.place import Place

ENOUGH = 90.0  # seconds within which one of two has stopped, once both run: a drain is among them


@dataclass(frozen=True, slots=True)
class Started:
    """A command, as it was given."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: str

    def begin(self, log: Path) -> subprocess.Popen[bytes]:
        """Start it again."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self.argv, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def with_clock(self, hours: int) -> Started:
        """With a wall clock so many hours ahead; monotonic clocks, waits and files have the right time."""
        if not hours:
            return self
        wrong = {
            "LD_PRELOAD": library(), "FAKETIME": f"{hours:+d}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1", "NO_FAKE_STAT": "1",
        }  # fmt: skip
        return replace(self, environment=self.environment | wrong)

    def beside(self, folder: Path) -> Started:
        """With a pidfile and a log of its own."""
        places = {f"--{kind}file=": folder for kind in ("pid", "log")}
        argv = []
        for word in self.argv:
            start = next((start for start in places if word.startswith(start)), "")
            argv.append(f"{start}{places[start] / Path(word.removeprefix(start)).name}" if start else word)
        return replace(self, argv=tuple(argv))


class Twins:
    """The second ones of all names."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._needles: dict[str, str] = {}  # what only a twin's command line has

    def start(self, name: str, first: Started) -> bool:
        """Start a second one; False while there is one."""
        if self.pids(name):
            return False
        folder = self._place.cloud.state.path("twins")
        folder.mkdir(exist_ok=True)
        pidfile = folder / f"{name}.pid"
        pidfile.unlink(missing_ok=True)
        second = first.beside(folder)
        self._needles[name] = f"--pidfile={pidfile}"
        assert any(self._needles[name] in word for word in second.argv), second.argv
        self._place.seconds.append(second.begin(self._place.cloud.state.log(f"{name}-twin")))
        return True

    def pids(self, name: str) -> list[int]:
        """Those that run now."""
        needle = self._needles.get(name)
        return with_command(needle) if needle else []

    def left(self) -> dict[str, list[int]]:
        """Twins that run beside their first ones, once one of each two had time to stop."""
        end = time.monotonic() + ENOUGH
        while (found := {name: pids for name in self._needles if (pids := self.pids(name))}) and time.monotonic() < end:
            for one in self._place.seconds:
                one.poll()  # or it stays a zombie
            time.sleep(0.2)
        return found

    def end(self) -> None:
        """None is left."""
        pids = [pid for name in self._needles for pid in self.pids(name)]
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        gone(pids, 10)


def as_started(pid: int | None) -> Started:
    """Command line, environment and folder of a process that runs."""
    proc = Path(f"/proc/{pid}")
    argv = proc.joinpath("cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    pairs = (entry.split("=", 1) for entry in os.fsdecode(proc.joinpath("environ").read_bytes()).split("\0") if entry)
    return Started(tuple(os.fsdecode(word) for word in argv), dict(pairs), str(proc.joinpath("cwd").readlink()))


def library() -> str:
    """libfaketime. That of Debian 12 breaks time.sleep() where monotonic clocks are right; PyPI's is newer."""
    found = importlib.util.find_spec("libfaketime")
    assert found is not None, "libfaketime is not installed: deploy/bootstrap.sh --tests"
    return str(Path(str(found.origin)).parent / "vendor/libfaketime/src/libfaketime.so.1")
