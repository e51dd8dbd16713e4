"""A temporary RabbitMQ server for tests: own folder, ports, cookie, epmd; no plugins.

One node with a virtual host for each failure domain. `end()` removes everything.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloud.polling import wait_until
from deploy.local import brokers
from deploy.local.output import Failed
from deploy.local.ports import any_free
from deploy.local.state import DOMAINS, require, write_private

START_SECONDS, STOP_SECONDS = 60, 30
ADVICE = "Run deploy/bootstrap.sh --tests, which installs it, or: apt-get install rabbitmq-server"
SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in PATH switches to the user rabbitmq
CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
USER = "stillwater"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
# Two Erlang schedulers without busy waiting: the machine has other work. Distribution on loopback only.
# Late acknowledgements of consumers are searched for every second; the default is every minute.
ERLANG = (
    "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
    " -kernel inet_dist_use_interface {127,0,0,1} -rabbit channel_tick_interval 1000"
)


@contextmanager
def server(settings: str = "", home: Path | None = None) -> Iterator[RabbitMQ]:
    """Run a server for the block."""
    broker = RabbitMQ(settings, home)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


class RabbitMQ:
    """One server. `settings` are additional lines of rabbitmq.conf.

    `home`: the folder of a machine of tls_certificates. With it the server speaks TLS only, and only to clients with a
    certificate of its authority.
    """

    def __init__(self, settings: str = "", home: Path | None = None) -> None:
        self._settings, self._home = settings, home
        self.folder = Path(tempfile.mkdtemp(prefix="stillwater-mq-"))
        self._password = secrets.token_urlsafe(16)
        self._port, self._distribution, self._epmd_port = any_free(), any_free(), any_free()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        write_private(self.folder / ".erlang.cookie", secrets.token_hex(16))
        (self.folder / ".erlang.cookie").chmod(0o400)
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "inetrc").write_text('{lookup, ["file"]}.\n')  # without extra resolver processes
        write_private(self.folder / "definitions.json", json.dumps(self._definitions()))

    def url(self, domain: str) -> str:
        """Return the URL of a failure domain's broker."""
        return f"{'amqps' if self._home else 'amqp'}://{USER}:{self._password}@127.0.0.1:{self._port}/{domain}"

    def start(self) -> None:
        """Start it, and return when it accepts connections. Raises Failed."""
        if self._epmd is None:
            self._epmd = self._launch("epmd", require("epmd", ADVICE))
        (self.folder / "rabbitmq.conf").write_text(
            f"{self._listeners()}\n"
            f"load_definitions = {self.folder}/definitions.json\n{self._settings}\n"
        )
        self._server = self._launch("server", require(SCRIPT, ADVICE))
        wait_until(lambda: self._answers() or not self.is_running(), START_SECONDS)
        if not self._answers():
            raise Failed(f"RabbitMQ did not start: {(self.folder / 'server.log').read_text()[-800:]}")

    def is_running(self) -> bool:
        """Return whether its process runs."""
        return self._server is not None and self._server.poll() is None

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal; after SIGKILL nothing more is written to disk."""
        if self._server is not None:
            self._server.send_signal(sig)
            self._server.wait(STOP_SECONDS)

    def control(self, *words: str) -> None:
        """Run rabbitmqctl."""
        command = [require(CONTROL, ADVICE), *words]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True, timeout=STOP_SECONDS)

    def read_certificates(self) -> None:
        """Take renewed certificates: Erlang keeps the files in its memory for two minutes."""
        self.control("eval", "ssl:clear_pem_cache().")

    def wipe(self) -> None:
        """Delete its queues, messages and all other data while it is stopped, as before its first start."""
        assert not self.is_running()
        shutil.rmtree(self.folder / "data")

    def end(self) -> None:
        """Kill it and delete its folder."""
        self.stop(signal.SIGKILL)
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait(STOP_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        """Return whether clients of every failure domain can connect."""
        own = self._files()
        secure = own | {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": None} if own else False
        return all(brokers.answers(self.url(domain), secure) for domain in DOMAINS)

    def _listeners(self) -> str:
        own, address = self._files(), f"127.0.0.1:{self._port}"
        if not own:
            return f"listeners.tcp.default = {address}"
        lines = {
            "listeners.tcp": "none", "listeners.ssl.default": address, "ssl_options.cacertfile": own["ca_certs"],
            "ssl_options.certfile": own["certfile"], "ssl_options.keyfile": own["keyfile"],
            "ssl_options.verify": "verify_peer", "ssl_options.fail_if_no_peer_cert": "true",
        }  # fmt: skip
        return "\n".join(f"{name} = {value}" for name, value in lines.items())

    def _files(self) -> dict[str, str]:
        """Return its TLS files; {} without TLS."""
        if self._home is None:
            return {}
        name = self._home.name
        files = {"ca_certs": "ca.crt", "certfile": f"{name}.crt", "keyfile": f"{name}.key"}
        return {option: str(self._home / file) for option, file in files.items()}

    def _launch(self, name: str, program: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as out:
            return subprocess.Popen(
                [program], cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _environment(self) -> dict[str, str]:
        """Return the environment, which configures everything. epmd runs in the foreground, so that `end` ends it."""
        folder = str(self.folder)
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": folder,  # Erlang reads its cookie here
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_INETRC": f"{folder}/inetrc",
            "RABBITMQ_NODENAME": f"stillwater-{self._port}@localhost",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG,
            "RUNNING_UNDER_SYSTEMD": "true",  # makes the script exec the server, so that we know its pid
        }

    def _definitions(self) -> dict[str, list[dict[str, object]]]:
        return {
            "users": [{"name": USER, "password": self._password, "tags": ""}],
            "vhosts": [{"name": domain} for domain in DOMAINS],
            "permissions": [{"user": USER, "vhost": domain, **ALL} for domain in DOMAINS],
        }
