"""A PostgreSQL server of our own for the length of one command: python -m deploy.local.postgres COMMAND...

The command finds it in STILLWATER_TEST_DATABASE_URL. Own data, free loopback port; nobody else's is touched.
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

from deploy.local.output import Failed, say, wait_for
from deploy.local.ports import any_free

INIT_SECONDS, START_SECONDS, STOP_SECONDS = 60, 30, 30
# Its data lives as long as the tests, so nothing waits for a disk; many threads in many processes.
SETTINGS = ("fsync=off", "full_page_writes=off", "max_connections=400")
FORGETFUL = ("synchronous_commit=off",)  # a killed server loses its last commits, and nobody kills it


class Server:
    """One server with its data in a folder of its own. What was committed outlives `kill`, unless it is forgetful."""

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

    @property
    def url(self) -> str:
        """Without a database name."""
        return f"postgresql://stillwater:{self._password}@127.0.0.1:{self.port}"

    def create(self, name: str, like: str = "template1") -> None:
        """A database of this name, with the tables of another one, to which nobody is connected."""
        made = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(like))
        with psycopg.connect(f"{self.url}/postgres", autocommit=True) as connection:
            connection.execute(made)

    def start(self) -> None:
        """Until it answers. Raises Failed, also while processes of its killed life have not ended yet."""
        self.process = _launch(self.folder, self._account, self.port, self._settings)
        _wait(self.process, self.port, self.folder)

    def stop(self) -> None:
        """PostgreSQL's "fast": clients are cut off."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """kill -9 of the postmaster; the others of its processes notice by themselves."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)

    def remove(self) -> None:
        """Its data is gone."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """A running server's URL, without a database name."""
    one = Server(*FORGETFUL)
    try:
        one.start()
        yield one.url
    finally:
        one.stop()
        one.remove()


def _account() -> pwd.struct_passwd:
    """Who it runs as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as(account: pwd.struct_passwd) -> list[str]:
    """The start of a command line that drops root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _initialise(folder: Path, account: pwd.struct_passwd) -> None:
    command = [
        *_as(account), _program("initdb"), "-D", str(folder / "data"), "-U", "stillwater",
        "--encoding=UTF8", "--locale=C", f"--pwfile={folder / 'password'}", "--no-sync",
        "--auth=md5",  # scram is dear by design, and this is a loopback port of a test
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

    if not wait_for(settled, START_SECONDS) or process.poll() is not None:
        raise Failed(f"PostgreSQL did not start: {(folder / 'log').read_text(errors='replace')[-800:]}")


def _program(name: str) -> str:
    """Debian keeps the server's programs out of PATH, a folder per version; the newest is taken."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    program = str(found[-1]) if found else shutil.which(name)
    if not program:
        raise Failed(f"PostgreSQL's {name} is not installed: deploy/bootstrap.sh --tests")
    return program


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parts[-3])]


def main() -> int:
    """Run the command line's command against a server of its own."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped then too
    try:
        with server() as url:
            say("a PostgreSQL server of our own runs")
            return subprocess.call(sys.argv[1:], env=os.environ | {"STILLWATER_TEST_DATABASE_URL": url})
    except Failed as failed:
        failed.show()
        return 1


if __name__ == "__main__":
    sys.exit(main())
