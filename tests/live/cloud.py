"""A whole cloud for tests: the real commands, in a temporary folder, on free ports.

cloud.openstack("server", "list")        the stock client's JSON
cloud.do("server", "stop", "a")          a command of it that prints no table
cloud.sdk(admin=True)                    an openstacksdk connection
cloud.kill("host1", signal.SIGKILL)      end a process of it
cloud.up(); cloud.down(); cloud.status() the commands people type
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from cloud.processes import gone
from deploy.local import api, envfiles, first_server, hosts, libvirtd_conf, redis, stale_processes, workers
from deploy.local.libvirtd import LibvirtHost
from deploy.local.ports import any_free, next_free
from deploy.local.processes import Daemon
from deploy.local.state import ROOT, StackState
from tests import stock
from tests.machine import fair

UP_SECONDS, DOWN_SECONDS, STATUS_SECONDS, CLIENT_SECONDS = 400, 300, 60, 180
# Waiting costs the same test more when beats are slow, every command of the stock client logs in, and each process of
# the API takes a second to start; nothing else about the cloud differs from a user's.
QUICK = {
    "STILLWATER_REPORT_INTERVAL": "2", "STILLWATER_RELAY_INTERVAL": "2", "STILLWATER_RESEND_AFTER": "5",
    "STILLWATER_PASSWORD_WORK_FACTOR": "1024", "STILLWATER_API_PROCESSES": "2",
}  # fmt: skip


class ClientFailed(AssertionError):
    """The stock client said no; its words are the text."""


class Cloud:
    """One cloud of the tests'. `settings` are STILLWATER_ variables its first `up` is given.

    `root`: the source tree whose `up` and `down` it is, by default this one.
    """

    def __init__(self, driver: str, *, hosts_per_cell: int = 1, root: Path = ROOT, **settings: str) -> None:
        # short: a socket's path has a length limit
        self.directory = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
        self.driver, self.settings, self.root = driver, QUICK | settings, root
        self.hosts_per_cell = hosts_per_cell
        self.port = any_free()
        self.redis_port = next_free(20000 + self.port % 20000)

    @property
    def state(self) -> StackState:
        """Its folder, read anew."""
        return StackState(self.directory)

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self.port}"

    def up(self, *words: str) -> str:
        """`make up` without a first guest; what it printed. Raises AssertionError when it fails."""
        new = ("--driver", self.driver, "--redis-port", str(self.redis_port))
        new += ("--hosts-per-cell", str(self.hosts_per_cell))
        first = () if self.state.exists else new
        # built once for all clouds of the machine
        guests = ("--guests", str(ROOT / "var/guests"))
        words = ("up", "--no-first-guest", "--port", str(self.port), *guests, *first, *words)
        return self._local(*words, seconds=UP_SECONDS)

    def down(self) -> str:
        """`make down`; what it printed."""
        return self._local("down", seconds=DOWN_SECONDS)

    def __enter__(self) -> Cloud:
        """Up; one that does not come up is ended."""
        try:
            self.up()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def status(self) -> subprocess.CompletedProcess[str]:
        """`make status`: its page and exit code."""
        return self._run("status", seconds=STATUS_SECONDS)

    def openstack(self, *words: str, admin: bool = False, seconds: float = CLIENT_SECONDS) -> Any:
        """What `openstack … -f json` prints, parsed; None for commands that print nothing."""
        done = self.client(*words, "-f", "json", admin=admin, seconds=seconds)
        if "unrecognized arguments: -f" in done.stderr:  # delete, start, stop … have no output to format
            done = self.client(*words, admin=admin, seconds=seconds)
        if done.returncode != 0:
            raise ClientFailed(f"openstack {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return json.loads(done.stdout) if done.stdout.strip()[:1] in ("[", "{") else None

    def do(self, *words: str, admin: bool = False, seconds: float = CLIENT_SECONDS) -> str:
        """What `openstack …` prints for people."""
        done = self.client(*words, admin=admin, seconds=seconds)
        if done.returncode != 0:
            raise ClientFailed(f"openstack {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def client(
        self, *words: str, admin: bool = False, seconds: float = CLIENT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """The stock client as it is, whatever it answers."""
        name = "stillwater-admin" if admin else "stillwater"
        environment = first_server.client_environment(self.state)
        return stock.run("--os-cloud", name, *words, env=environment, seconds=seconds)

    def sdk(self, *, admin: bool = False) -> Any:
        """An openstacksdk connection."""
        import openstack

        config = openstack.config.OpenStackConfig(
            config_files=[str(self.directory / "clouds.yaml")], load_envvars=False
        )
        return openstack.connection.Connection(
            config=config.get_one("stillwater-admin" if admin else "stillwater")
        )

    def manage(self, *words: str, seconds: float = 60) -> str:
        """A `manage.py` command on its global side; what it printed."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *words], cwd=ROOT, env=self._managing(), capture_output=True,
            text=True, timeout=seconds, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def manage_soon(self, *words: str) -> Callable[[], str]:
        """The same in a process that has started, and waits for a call of what this returns."""
        wait = "print(flush=True); input(); from django.core.management import call_command"
        command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v", "0", "-c", f"{wait}; call_command(*{words})"]
        process = subprocess.Popen(
            command, cwd=ROOT, env=self._managing(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        process.stdout.readline()

        def now() -> str:
            out, err = process.communicate("now\n", timeout=60)
            assert process.returncode == 0, err
            return out

        return now

    def ask(self, database: str, question: str) -> list[tuple[Any, ...]]:
        """Rows of one of its databases: global, cell0, cell1, cell2."""
        state = self.state
        url = envfiles.read(envfiles.global_file(state))[envfiles.database_variable(database)]
        if url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
                return connection.execute(question).fetchall()
        with psycopg.connect(url) as connection:
            return connection.execute(question.encode()).fetchall()

    def daemon(self, name: str) -> Daemon:
        """A process by its name in `make status`: api, scheduler, conductor-cell1, host1, redis-cell1 …"""
        state = self.state
        daemons = [redis.daemon(state, domain) for domain in state.redis_domains]
        daemons += [api.daemon(state), *(workers.daemon(state, node) for node in workers.nodes(state))]
        return next(daemon for daemon in daemons if daemon.name == name)

    def libvirtd(self, host: str) -> LibvirtHost:
        """The private libvirtd of a host: uri, pids, guests."""
        return hosts.libvirt_host(self.state, host)

    def guests(self, host: str) -> list[str]:
        """What `virsh list` shows on a host."""
        return hosts.guests(self.libvirtd(host))

    def virsh(self, host: str, *words: str) -> str:
        """What virsh prints for a host's own libvirtd."""
        done = libvirtd_conf.virsh(self.libvirtd(host), *words, seconds=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self, name: str, sig: signal.Signals = signal.SIGKILL, seconds: float = 60) -> int:
        """Signal a process and wait until it has ended; returns what its pid was."""
        pid = self.daemon(name).pid()
        assert pid, f"{name} does not run"
        os.kill(pid, sig)
        assert gone([pid], seconds), f"{name} ({pid}) still runs {seconds:g} s after {sig.name}"
        return pid

    def pids(self) -> dict[str, int | None]:
        """Every process by name."""
        names = ["api", *(f"redis-{domain}" for domain in self.state.redis_domains)]
        names += [node.name for node in workers.nodes(self.state)]
        return {name: self.daemon(name).pid() for name in names}

    def leftovers(self) -> dict[int, str]:
        """Pid and command line of the processes that belong to it."""
        return stale_processes.find(self.state)

    def log(self, name: str) -> str:
        """What a process has logged."""
        file = self.state.log(name)
        return file.read_text(errors="replace") if file.exists() else ""

    def end(self) -> None:
        """Down, and nothing left; the folder goes only when all went well, for it has the logs."""
        if self.state.exists:
            self.down()
            if self.driver == "libvirt":
                assert not [pid for host in self.state.hosts for pid in self.libvirtd(host).qemu_pids()]
        assert not self.leftovers()
        shutil.rmtree(self.directory)

    def _managing(self) -> dict[str, str]:
        return self._environment() | {"STILLWATER_ENV_FILE": str(self.directory / "stillwater.env")}

    def _local(self, *words: str, seconds: float) -> str:
        done = self._run(*words, seconds=seconds)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"deploy.local {' '.join(words)} (in {self.directory}):\n{said}"
        return said

    def _run(self, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
        python = sys.executable if self.root == ROOT else str(self.root / ".venv/bin/python")
        command = [python, "-m", "deploy.local", *words]
        # not through pipes: daemons that inherit one would keep it open
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            code = subprocess.run(
                command, cwd=self.root, env=self._environment(), stdout=out, stderr=err, timeout=seconds,
                stdin=subprocess.DEVNULL,
            ).returncode  # fmt: skip
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def _environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STILLWATER_")}
        clean.pop("DJANGO_SETTINGS_MODULE", None)  # pytest-django's are not the product's
        return clean | self.settings | {"STILLWATER_STATE": str(self.directory)}


def eventually(what: str, condition: Callable[[], Any], seconds: float = 60, pause: float = 0.3) -> Any:
    """The first true answer of `condition`; AssertionError naming `what` at the deadline, in fair seconds."""
    deadline = time.monotonic() + fair(seconds)
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
    return answer
