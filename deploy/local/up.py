"""`up`: create what is missing and start what does not run; nothing else is touched."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from cells import broker_tls
from cloud.env import VARIABLES
from deploy.local import api, brokers, cells, clients, envfiles, first_server, hosts, redis, workers
from deploy.local.manage_commands import manage
from deploy.local.output import Failed, hint, say, step
from deploy.local.processes import tool
from deploy.local.seed import Guests, databases
from deploy.local.state import DOMAINS, StackState, write_private

API_PORT, REDIS_PORT = 8774, 6390


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of the command line; None: the kept choice, or the default."""

    driver: str | None = None
    bind: str | None = None
    port: int | None = None
    redis_port: int | None = None
    hosts_per_cell: int | None = None
    guests: Path | None = None
    first_guest: bool = True


def up(state: StackState, options: UpOptions) -> None:
    """Bring the cloud up. Raises Failed, at the end also for a cell whose database does not answer."""
    began = time.monotonic()
    decide(state, options)
    values = envfiles.write(state)
    clients.write(state)
    guests = Guests(state, options.guests or state.path("guests"))
    guests.start()
    changed = start_redis(state, values)
    databases(state, values)
    away = cells.away(state)
    changed |= start_services(state, away)
    guests.imported()
    if away:
        raise Failed("\n  ".join(cell.sentence for cell in away), advice=f"Everything else runs. {cells.ADVICE}")
    if options.first_guest:
        first_server.first_guest(state)
    say("everything runs" if changed else "everything ran already", time.monotonic() - began)
    what_next(state)


def decide(state: StackState, options: UpOptions) -> None:
    """Settle driver, hosts, ports and brokers. Raises Failed for a change that this cloud cannot make now."""
    choices = state.choices
    if state.exists and options.driver and options.driver != choices.driver:
        raise Failed(
            f"this cloud was made with the {choices.driver} driver and keeps it",
            advice=f"For another: make up DRIVER={options.driver} STILLWATER_STATE=var2 PORT=8874",
        )
    if state.exists and options.hosts_per_cell not in (None, choices.hosts_per_cell):
        raise Failed(
            f"this cloud was made with {choices.hosts_per_cell} host(s) per cell and keeps them",
            advice="For another number make a new cloud: make up STILLWATER_STATE=/another/folder",
        )
    choices.hosts_per_cell = options.hosts_per_cell or choices.hosts_per_cell
    address = (options.bind or choices.bind, options.port or choices.port)
    if address != (choices.bind, choices.port) and running(state):
        raise Failed(
            f"this cloud runs on {choices.bind}:{choices.port} and its hosts know it by that",
            advice="`make down` first, then `make up` with the new port.",
        )
    choices.bind, choices.port = address
    choices.driver = options.driver or choices.driver
    if options.redis_port and options.redis_port not in choices.redis_ports.values():
        if running(state):
            raise Failed("Redis runs on its ports already", advice="`make down` first, then `make up REDIS_PORT=…`.")
        choices.redis_ports.clear()
    api.check_port(state)
    state.create()
    redis.choose_ports(state, options.redis_port or REDIS_PORT)
    take_brokers(state)


def take_brokers(state: StackState) -> None:
    """Keep an exported broker URL in place of our Redis. Raises Failed while the API or a worker runs."""
    for domain in DOMAINS:
        url = os.environ.get(envfiles.broker_variable(domain))
        if not url or url == state.broker_url(domain):
            continue
        if running(state):
            raise Failed(f"this cloud runs on another broker ({domain})", advice="`make down` first, then `make up`.")
        write_private(state.given_broker(domain), url + "\n")


def running(state: StackState) -> list[str]:
    """Return the names of the API and the workers that run."""
    daemons = [api.daemon(state), *(workers.daemon(state, node) for node in workers.nodes(state))]
    return [daemon.name for daemon in daemons if daemon.pid()]


def start_redis(state: StackState, values: dict[str, str]) -> bool:
    """Start a Redis for each failure domain without a given broker. Return whether any was started. Raises Failed.

    `values`: of the global env file.
    """
    for domain in DOMAINS:
        url = state.broker_url(domain)
        secure = broker_tls.options(url, lambda name: VARIABLES[name].read(values))
        if domain not in state.redis_domains and not brokers.answers(url, secure):
            raise Failed(
                f"the broker of {domain} does not answer",
                advice=f"Start it, or export its URL as {envfiles.broker_variable(domain)}.",
            )
    if not state.redis_domains:
        return False
    with step("Redis") as note:
        started = redis.start(state)
        note.text = f"started {', '.join(started)}" if started else "running"
    return bool(started)


def start_services(state: StackState, away: list[cells.Cell]) -> bool:
    """Start hypervisors, workers and the API. Return whether anything was started. Raises Failed.

    Workers of the cells in `away` are not waited for.
    """
    with step("hypervisors") as note:
        libvirtds = hosts.start(state)
        note.text = _hypervisors(state, libvirtds)
    with step("API, scheduler, conductors and hosts") as note:
        since = time.monotonic()
        gunicorn = api.start(state)
        nodes = workers.start(state)
        api.wait_until_ready(state, gunicorn)
        if nodes:
            waiting = {cell.name for cell in away}
            able = [node for node in nodes if workers.cell_of(state, node) not in waiting]
            workers.wait_until_ready(state, able, since)
        if (nodes or gunicorn) and not away:  # or an earlier `up` failed before this line, at the API
            manage(state, "discover_hosts")
        names = [*(["api"] if gunicorn else []), *(node.name for node in nodes)]
        note.text = f"started {', '.join(names)}" if names else "running"
    return bool(libvirtds or names)


def _hypervisors(state: StackState, started: list[str]) -> str:
    if state.choices.driver == "fake":
        return "none, guests are simulated (fake driver)"
    return f"started libvirtd of {', '.join(started)}" if started else "running"


def what_next(state: StackState) -> None:
    """Print the commands to type next."""
    print(f"""
  export OS_CLIENT_CONFIG_FILE={clients.clouds_yaml(state)}
  {tool("openstack")} --os-cloud stillwater server list
  {tool("openstack")} --os-cloud stillwater console log show {first_server.NAME}

  As administrator: --os-cloud stillwater-admin
  Admin pages:      {state.api_url}/admin/  (admin, password in {clients.password_file(state, "admin")})
  And:              make status, make down""")
    if state.choices.driver == "fake":
        hint("Guests are SIMULATED here: the fake driver runs no virtual machine.")
