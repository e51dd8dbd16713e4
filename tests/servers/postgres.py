"""A temporary PostgreSQL server for one command: python -m tests.servers.postgres COMMAND...

The command finds the URL in STILLWATER_TEST_DATABASE_URL. The server has its own data and a free loopback port; other
servers are not touched.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from cloud.polling import wait_until
from deploy.local.output import Failed, say
from deploy.local.ports import any_free

INIT_SECONDS, START_SECONDS, STOP_SECONDS = 60, 30, 30
# The data lives as long as the tests, so nothing waits for a disk. Clients are many threads in many processes.
SETTINGS = ("fsync=off", "full_page_writes=off", "max_connections=400")
FORGETFUL = ("synchronous_commit=off",)  # only for servers that are not killed: a kill would lose the last commits


class Server:
    """One server with its data in its own folder.

    Committed data survives `kill`, unless the settings are FORGETFUL.
    """

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stillwater-pg-"))
        self._settings, self._account = settings, _account()
        self._password = secrets.token_urlsafe(16)
        (self.folder / "password").write_text(self._password)
        for path in (self.folder, self.folder / "password"):
            os.chown(path, self._account.pw_uid, self._account.pw_gid)
        _initialise(self.folder, self._account)
        self.port = any_free()
        self.process: subprocess.Popen[bytes] | None = None
        self.client: dict[str, str] = {}  # libpq's parameters of this class's own connections

    @property
    def url(self) -> str:
        """The URL without a database name."""
        return f"postgresql://stillwater:{self._password}@127.0.0.1:{self.port}"

    def serve_tls(self, home: Path) -> None:
        """Serve TLS only, as the machine of a folder of tls_certificates, to clients of its authority.

        Of a running server: take its renewed certificate.
        """
        names = {"ca": "ca.crt", "cert": f"{home.name}.crt", "key": f"{home.name}.key"}
        for name in names.values():
            shutil.copy(home / name, self.folder)
            os.chown(self.folder / name, self._account.pw_uid, self._account.pw_gid)
        if self.process is not None:
            self.process.send_signal(signal.SIGHUP)
            return
        (self.folder / "data/pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 md5 clientcert=verify-ca\n")
        self._settings += ("ssl=on", *(f"ssl_{kind}_file={self.folder / name}" for kind, name in names.items()))

    def create(self, name: str, like: str = "template1") -> None:
        """Create a database with the tables of another one, to which no client may be connected."""
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(like))
        with psycopg.connect(f"{self.url}/postgres", autocommit=True, **self.client) as connection:
            connection.execute(made)

    def start(self) -> None:
        """Start it and wait until it answers. Raises Failed, also while processes of a killed server still run."""
        self.process = _launch(self.folder, self._account, self.port, self._settings)
        _wait(self.process, self.port, self.folder)

    def stop(self) -> None:
        """End it with PostgreSQL's fast shutdown: clients are disconnected."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """Kill the postmaster by SIGKILL; its other processes notice that and end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)

    def remove(self) -> None:
        """Delete its data."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """Run a server for the block and yield its URL, without a database name."""
    one = Server(*FORGETFUL)
    try:
        one.start()
        yield one.url
    finally:
        one.stop()
        one.remove()


def _account() -> pwd.struct_passwd:
    """Return the account the server runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as(account: pwd.struct_passwd) -> list[str]:
    """Return the start of a command line that drops root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _initialise(folder: Path, account: pwd.struct_passwd) -> None:
    command = [
        *_as(account), _program("initdb"), "-D", str(folder / "data"), "-U", "stillwater",
        "--encoding=UTF8", "--locale=C", f"--pwfile={folder / 'password'}", "--no-sync",
        "--auth=md5",  # scram is slow by design, and this is a loopback port of a test
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INIT_SECONDS)
    if done.returncode != 0:
        raise Failed(f"initdb failed: {done.stderr.strip()[-500:]}")


def _launch(
    folder: Path, account: pwd.struct_passwd, port: int, more: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    command = [*_as(account), _program("postgres"), "-D", str(folder / "data"), "-p", str(port)]
    for setting in ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *SETTINGS, *more):
        command += ["-c", setting]
    with (folder / "log").open("ab") as out:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    probe = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]

    def settled() -> bool:
        return process.poll() is not None or subprocess.run(probe, timeout=10).returncode == 0

    if not wait_until(settled, START_SECONDS) or process.poll() is not None:
        raise Failed(f"PostgreSQL did not start: {(folder / 'log').read_text(errors='replace')[-800:]}")


def _program(name: str) -> str:
    """Return the path of a PostgreSQL program. Debian has a folder per version, not in PATH; the newest is used."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    program = str(found[-1]) if found else shutil.which(name)
    if not program:
        raise Failed(f"PostgreSQL's {name} is not installed: deploy/bootstrap.sh --tests")
    return program


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parts[-3])]


def main() -> int:
    """Run the command line's command against a temporary server, and return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM stops the server, too
    try:
        with server() as url:
            say("a PostgreSQL server of our own runs")
            return subprocess.call(sys.argv[1:], env=os.environ | {"STILLWATER_TEST_DATABASE_URL": url})
    except Failed as failed:
        failed.show()
        return 1


if __name__ == "__main__":
    sys.exit(main())
