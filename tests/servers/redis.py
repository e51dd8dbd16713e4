"""A temporary Redis server that speaks TLS only, and only to clients with a certificate of its authority."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from cloud.polling import wait_until
from deploy.local.ports import any_free
from deploy.local.state import require, write_private

SECONDS = 30


class Redis:
    """One server on a free loopback port. `home`: the folder of a machine of tls_certificates."""

    def __init__(self, home: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stillwater-redis-"))
        self.port, self._password, self._home = any_free(), secrets.token_urlsafe(16), home
        lines = {
            "port": 0, "tls-port": self.port, "bind": "127.0.0.1", "dir": self.folder, "save": '""',
            "requirepass": self._password, "tls-auth-clients": "yes", **self._files(),
        }  # fmt: skip
        write_private(self.folder / "redis.conf", "".join(f"{name} {value}\n" for name, value in lines.items()))
        with (self.folder / "log").open("ab") as out:
            command = [require("redis-server", "apt-get install redis-server"), str(self.folder / "redis.conf")]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    @property
    def url(self) -> str:
        return f"rediss://:{self._password}@127.0.0.1:{self.port}/0"

    def wait(self) -> None:
        """Wait until it answers. Raises AssertionError."""
        assert wait_until(self._answers, SECONDS), (self.folder / "log").read_text()[-800:]

    def read_certificates(self) -> None:
        """Take renewed certificates."""
        with self.client() as client:
            client.config_set("tls-cert-file", str(self._files()["tls-cert-file"]))

    def client(self) -> redis.Redis:
        """The machine "client" of the same folder, which does not verify the server: its certificate may be wrong."""
        own = self._home.parent / "client/client"
        return redis.Redis(
            port=self.port, password=self._password, ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False,
            ssl_certfile=f"{own}.crt", ssl_keyfile=f"{own}.key",
        )  # fmt: skip

    def end(self) -> None:
        """End it and delete its folder."""
        self._process.terminate()
        self._process.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _files(self) -> dict[str, Path]:
        home = self._home
        return {"tls-ca-cert-file": home / "ca.crt", "tls-cert-file": home / f"{home.name}.crt",
                "tls-key-file": home / f"{home.name}.key"}  # fmt: skip


@contextmanager
def server(home: Path) -> Iterator[Redis]:
    """Run a server for the block."""
    one = Redis(home)
    try:
        one.wait()
        yield one
    finally:
        one.end()
