"""Processes started as a systemd unit of ours says, by a systemd that is played: sockets, notifications, SIGTERM."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from deploy.local.state import ROOT
from tasks.stop_timeouts import INSTALLED

# The socket becomes number 3, and the process is told that it is meant.
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
"""
UNITS = ROOT / "deploy/systemd"


class Unit:
    """A service of ours. `settings` are what its EnvironmentFile says; `held` is its socket unit's."""

    def __init__(self, name: str, folder: Path, *, instance: str = "", held: socket.socket | None = None,
                 **settings: str) -> None:  # fmt: skip
        text = (UNITS / name).read_text().replace(INSTALLED, str(ROOT)).replace("%i", instance)
        said = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
        [command] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
        [self.wait_seconds] = map(float, re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE))
        self.log, self.said = folder / f"{name}.log", list[str]()
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify = folder / "notify"
        notify.unlink(missing_ok=True)
        self._heard.bind(str(notify))
        launcher = [sys.executable, "-c", AS_SYSTEMD, str(held.fileno())] if held else []
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*launcher, *shlex.split(command)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                pass_fds=[held.fileno()] if held else [], start_new_session=True,
                env={"PATH": os.environ["PATH"], "NOTIFY_SOCKET": str(notify)} | said | settings,
            )  # fmt: skip

    def hear(self, word: str, seconds: float) -> str:
        """The notification that has this word; those before it are in `said`. Raises TimeoutError."""
        self._heard.settimeout(seconds)
        while True:
            message = self._heard.recv(4096).decode()
            self.said += message.split("\n")
            if word in message.split("\n"):
                return message

    def stop(self) -> int:
        """SIGTERM to the main process alone, as KillMode=mixed says; its exit code. Raises TimeoutExpired."""
        self.process.terminate()
        return self.process.wait(self.wait_seconds)

    def end(self) -> None:
        """Nothing of it is left, however the test went."""
        self._heard.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait(30)
