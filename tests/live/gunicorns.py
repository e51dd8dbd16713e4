"""APIs of the tests' own beside a cloud's: same databases and settings, another port, and signals to send."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPSConnection
from pathlib import Path
from typing import Any

import psutil

from deploy.local import api, envfiles
from deploy.local.processes import tool
from deploy.local.state import ROOT
from tests.live.cloud import Cloud, eventually

# What systemd does before it starts the service of a socket (sd_listen_fds(3)).
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], os.environ | {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
"""
START_SECONDS, ANSWER_SECONDS = 90, 60
BEGIN_SECONDS = 0.5  # from an accepted connection to its request; the API logs nothing at that moment


def listener() -> socket.socket:
    """A socket that listens, as systemd holds one."""
    held = socket.create_server(("127.0.0.1", 0), backlog=512)
    held.set_inheritable(True)
    return held


class Api:
    """One gunicorn with the product's configuration; on `held`, it is told of the socket as systemd does.

    `root`: the source tree that it runs, by default this one. `words`: arguments instead of the configuration.
    `context`: how to speak to one that serves https.
    """

    def __init__(
        self, cloud: Cloud, log: Path, *, held: socket.socket | None = None, root: Path = ROOT,
        words: Sequence[str] = (), port: int = 0, context: ssl.SSLContext | None = None, **settings: str,
    ) -> None:  # fmt: skip
        self.context = context
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = port or (held or free).getsockname()[1]
        configuration = root / api.CONFIGURATION.relative_to(ROOT)
        gunicorn = tool("gunicorn") if root == ROOT else str(root / ".venv/bin/gunicorn")
        command = [gunicorn, *(words or (f"--config={configuration}", "cloud.wsgi", "--error-logfile=-"))]
        if held:
            command = [sys.executable, "-c", ACTIVATE, str(held.fileno()), *command]
        else:
            command.append(f"--bind=127.0.0.1:{self.port}")
        environment = envfiles.process_environment(cloud.state, envfiles.node_file(cloud.state, "api"))
        environment.pop("DJANGO_SETTINGS_MODULE", None)  # pytest-django's are not the product's
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, cwd=root, env=environment | settings, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                pass_fds=[held.fileno()] if held else [], start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def wait_until_ready(self, processes: int = 2) -> Api:
        """Until all workers have loaded the application."""
        alive = "its workers accept"
        eventually(alive, lambda: len(self.events("api.accepting")) >= processes or not self.runs(), START_SECONDS)
        assert self.runs(), self._log.read_text()[-2000:]
        assert self.ask("/readyz").status == 200
        return self

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        return ask(self.port, path, method, body, self.context, **headers)

    def workers(self) -> list[int]:
        """The numbers of its worker processes."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def wait_until_reached(self, requests: int = 1) -> None:
        """Until its workers have accepted the connections of so many requests, and had time to begin them."""

        def accepted() -> int:
            mine = [one for pid in self.workers() for one in psutil.Process(pid).net_connections("tcp")]
            return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == self.port for one in mine)

        eventually(f"{requests} requests arrive", lambda: accepted() >= requests, pause=0.05)
        time.sleep(BEGIN_SECONDS)

    def send(self, sig: signal.Signals) -> float:
        """Signal the master; when that was."""
        os.kill(self.pid, sig)
        return time.monotonic()

    def runs(self) -> bool:
        """Whether the master is there."""
        return self._process.poll() is None

    def wait(self, seconds: float = 60) -> int:
        """Its exit code."""
        return self._process.wait(seconds)

    def end(self) -> None:
        """SIGKILL, workers too; a process that has ended is no mistake."""
        if self.runs():
            for pid in (*self.workers(), self.pid):
                os.kill(pid, signal.SIGKILL)
            self._process.wait(30)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [event for line in lines if (event := json.loads(line))["event"] == name]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, read to its end."""

    status: int
    headers: HTTPMessage
    text: str

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.text)


def connect(port: int, context: ssl.SSLContext | None = None) -> HTTPConnection:
    """A connection that is made with its first request."""
    if context is None:
        return HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    return HTTPSConnection("127.0.0.1", port, timeout=ANSWER_SECONDS, context=context)


def ask(
    port: int, path: str, method: str = "GET", body: Any = None, context: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """One request on a connection of its own."""
    connection = connect(port, context)
    try:
        return ask_on(connection, path, method, body, **headers)
    finally:
        connection.close()


def ask_on(connection: HTTPConnection, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
    """One request on a connection that may stay."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"} | sent)
    answer = connection.getresponse()
    return Answer(answer.status, answer.headers, answer.read().decode())
