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

from deploy.local.ports import any_free
from deploy.local.progress import Failed, say, wait_for

INIT_SECONDS, START_SECONDS, STOP_SECONDS = 60, 30, 30
# Its data lives as long as the tests, so nothing waits for a disk; many threads in two processes.
SETTINGS = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=300")


@contextmanager
def server() -> Iterator[str]:
    """A running server's URL, without a database name."""
    folder = Path(tempfile.mkdtemp(prefix="stillwater-pg-"))
    account = _account()
    password = secrets.token_urlsafe(16)
    try:
        (folder / "password").write_text(password)
        for path in (folder, folder / "password"):
            os.chown(path, account.pw_uid, account.pw_gid)
        _initialise(folder, account)
        port = any_free()
        process = _launch(folder, account, port)
        try:
            _wait(process, port, folder)
            yield f"postgresql://stillwater:{password}@127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)  # PostgreSQL's "fast": clients are cut off
            process.wait(STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
        "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}",
        "--no-sync",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INIT_SECONDS)
    if done.returncode != 0:
        raise Failed(f"initdb failed: {done.stderr.strip()[-500:]}")


def _launch(folder: Path, account: pwd.struct_passwd, port: int) -> subprocess.Popen[bytes]:
    command = [*_as(account), _program("postgres"), "-D", str(folder / "data"), "-p", str(port)]
    for setting in ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *SETTINGS):
        command += ["-c", setting]
    with (folder / "log").open("wb") as out:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _wait(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    probe = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    ready = wait_for(lambda: subprocess.run(probe, timeout=10).returncode == 0, START_SECONDS)
    if not ready or process.poll() is not None:
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
