"""A Redis for each failure domain: own directory, port and password; other Redis servers are not touched."""

from __future__ import annotations

import subprocess

from redis import Redis
from redis.exceptions import RedisError

from cloud.polling import wait_until
from deploy.local import ports
from deploy.local.output import Failed
from deploy.local.processes import Daemon
from deploy.local.state import DOMAINS, StackState, require, write_private

START_SECONDS = 20
ADVICE = "Run `make up`, which installs it, or: apt-get install redis-server"
# set-proc-title no: the process is recognised by the path of our configuration in its command line.
CONFIGURATION = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {directory}
pidfile {pidfile}
logfile {log}
daemonize yes
set-proc-title no
appendonly yes
appendfsync everysec
save ""
"""


def daemon(state: StackState, domain: str) -> Daemon:
    """Return the Redis process of the global side or of a cell."""
    name = f"redis-{domain}"
    conf = str(state.path("redis", domain, "redis.conf"))
    return Daemon(name, state.pidfile(name), conf, state.log(name))


def choose_ports(state: StackState, first: int) -> None:
    """Choose ports for the failure domains that have none yet: the next free ones from `first`."""
    chosen = state.choices.redis_ports
    for domain in DOMAINS:
        if domain not in chosen:
            chosen[domain] = ports.next_free(first, {*chosen.values(), state.choices.port})
    state.save()


def start(state: StackState) -> list[str]:
    """Start the Redis servers that do not run and wait for each. Return their failure domains. Raises Failed."""
    started = [domain for domain in state.redis_domains if daemon(state, domain).forget_if_dead()]
    for domain in started:
        _launch(state, domain)
    for domain in started:
        if not wait_until(lambda domain=domain: answers(state, domain), START_SECONDS, 0.05):  # type: ignore[misc]
            raise Failed(f"Redis of {domain} does not answer after {START_SECONDS} s", log=state.log(f"redis-{domain}"))
    return started


def answers(state: StackState, domain: str) -> bool:
    """Return whether it accepts our password and has finished loading."""
    try:
        with Redis.from_url(state.broker_url(domain), socket_timeout=2) as client:
            return bool(client.ping())
    except RedisError:
        return False


def _launch(state: StackState, domain: str) -> None:
    port = state.choices.redis_ports[domain]
    if not ports.is_free(port):
        raise Failed(
            f"port {port} of this cloud's Redis ({domain}) is in use by another program",
            advice="Stop that program, or `make down` and `make up REDIS_PORT=<first of three free ports>`.",
        )
    directory = state.path("redis", domain)
    directory.mkdir(mode=0o700, exist_ok=True)
    conf = directory / "redis.conf"
    write_private(
        conf,
        CONFIGURATION.format(
            port=port, directory=directory, password=state.secret(f"redis-{domain}"),
            pidfile=state.pidfile(f"redis-{domain}"), log=state.log(f"redis-{domain}"),
        ),
    )  # fmt: skip
    command = [require("redis-server", ADVICE), str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failed(f"Redis of {domain} did not start: {done.stdout.strip()[-300:]}", log=state.log(f"redis-{domain}"))
