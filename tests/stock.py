"""The stock client as it is installed, without a second of imports for every command.

    stock.run("server", "list", env=…)       what subprocess.run([".venv/bin/openstack", …]) would answer

One process imports the client and forks for each command: the same `main()` with the same arguments, environment,
output and exit code. Nothing a command did is there for the next one. Only with `--wait` it looks ten times as often,
or most of the time of these tests were spent between its looks.

    python -m tests.stock SOCKET             that process
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENSTACK = Path(sys.executable).with_name("openstack")
START_SECONDS = 60
ITS_OWN, LOOKS_EVERY = 5, 0.5  # seconds
# what commands import when they are run
PACKAGES = (
    "openstackclient.common", "openstackclient.compute.v2", "openstackclient.identity.v3", "openstackclient.image.v2",
    "openstack.compute.v2", "openstack.identity.v3", "openstack.image.v2", "keystoneauth1.loading._plugins",
    "cliff.formatters",
)  # fmt: skip


def run(*words: str, env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """One command. Raises subprocess.TimeoutExpired after `seconds`, when it is killed."""
    with tempfile.TemporaryDirectory(prefix="stock-") as folder, socket.socket(socket.AF_UNIX) as line:
        out, err = Path(folder, "out"), Path(folder, "err")
        line.connect(str(server()))
        line.settimeout(seconds)
        answers = line.makefile("r")
        line.sendall(json.dumps([words, dict(env), str(out), str(err)]).encode() + b"\n")
        pid = int(answers.readline())
        try:
            code = answers.readline()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired([str(OPENSTACK), *words], seconds) from None
        return subprocess.CompletedProcess(
            [str(OPENSTACK), *words], int(code or -signal.SIGKILL), out.read_text(), err.read_text()
        )


@cache
def server() -> Path:
    """Where the process of these tests listens; started when it is asked for first, and ended with them."""
    folder = Path(tempfile.mkdtemp(prefix="stock-"))
    place = folder / "socket"
    process = subprocess.Popen([sys.executable, "-m", "tests.stock", str(place)], cwd=ROOT, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS
    while not place.exists():
        assert process.poll() is None, "the stock client cannot be imported"
        assert time.monotonic() < deadline, "the stock client is not imported yet"
        time.sleep(0.05)

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return place


def listen(place: Path) -> None:
    """Fork for each caller."""
    sys.argv = [str(OPENSTACK)]  # some of it looks at import time
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            if not module.name.endswith(".tests"):
                importlib.import_module(module.name)
    from openstackclient import shell
    from osc_lib import utils

    shell.OpenStackShell()  # finds its commands
    for wait in (utils.wait_for_status, utils.wait_for_delete):
        defaults = wait.__defaults__ or ()
        wait.__defaults__ = tuple(LOOKS_EVERY if value == ITS_OWN else value for value in defaults)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place.with_suffix(".new")))
        door.listen(64)
        place.with_suffix(".new").rename(place)
        while True:
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                answer(line)
            line.close()


def answer(line: socket.socket) -> None:
    """In the forked process: be the command, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, env, out, err = json.loads(line.makefile("r").readline())
    line.sendall(b"%d\n" % os.getpid())
    os.environ.clear()
    os.environ.update(env)
    for number, target in ((0, os.devnull), (1, out), (2, err)):
        descriptor = os.open(target, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    line.sendall(b"%d\n" % _exit_code(words))
    os._exit(0)


def _exit_code(words: list[str]) -> int:
    from openstackclient import shell

    sys.argv = [str(OPENSTACK), *words]
    code: object = 0
    try:
        code = shell.main()  # what the installed script does
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    listen(Path(sys.argv[-1]))
