"""`down`: stop everything gracefully, each service before those it depends on. `clean`: delete the state folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from cloud.polling import wait_until
from deploy.local import api, hosts, redis, stale_processes, workers
from deploy.local.output import Failed, hint, say, step
from deploy.local.processes import Daemon, stop
from deploy.local.state import DOMAINS, StackState

GUEST_SECONDS = 20
REDIS_SECONDS = 20


def down(state: StackState, seconds: float) -> None:
    """Stop the cloud; each service has `seconds` to finish its work. Raises Failed when a process is left."""
    if not state.exists:
        say(f"nothing to stop: there is no cloud in {state.directory}")
        return
    _stop("API", [api.daemon(state)], seconds)
    api.end_orphans(state)
    _stop("workers started by hand", workers.by_hand(state), seconds)
    for role, title in (("scheduler", "scheduler"), ("host", "hosts"), ("conductor", "conductors")):
        nodes = [node for node in workers.nodes(state) if node.role == role]
        _stop(title, [workers.daemon(state, node) for node in nodes], seconds)
    _stop_hypervisors(state)
    _stop("Redis", [redis.daemon(state, domain) for domain in DOMAINS], REDIS_SECONDS)
    _verify(state)


def clean(state: StackState) -> None:
    """Delete the state folder: databases, disks, secrets. Raises Failed while a process of the cloud runs."""
    if not state.exists:
        say(f"there is no cloud in {state.directory}")
        return
    running = stale_processes.find(state)
    if running:
        several = f"{len(running)} processes of this cloud run, {min(running)} is one"
        one = f"a process of this cloud runs: {min(running)}"
        raise Failed(several if len(running) > 1 else one, advice="First: make down")
    shutil.rmtree(state.directory)
    say(f"deleted {state.directory}")


def _stop(title: str, daemons: Sequence[Daemon], seconds: float) -> None:
    running = [daemon.name for daemon in daemons if daemon.pid()]
    if not running:
        for daemon in daemons:
            daemon.forget_if_dead()
        return
    with step(f"stopped {title}") as note:
        late = stop(daemons, seconds)
        names = ", ".join(running)
        note.text = f"{names} ({', '.join(late)} had to be killed after {seconds:.0f} s)" if late else names


def _stop_hypervisors(state: StackState) -> None:
    hosts.stop_guests(state, GUEST_SECONDS, hint)
    running = [host for host in hosts.libvirt_hosts(state) if host.is_running()]
    if running:
        with step("stopped libvirtd") as note:
            for host in running:
                host.stop()
            note.text = ", ".join(host.name for host in running)


def _verify(state: StackState) -> None:
    """Search all processes of the machine for leftovers; reapers need a moment after their last child."""
    if wait_until(lambda: not stale_processes.find(state), 5):
        say("no process of this cloud is left")
        return
    left = stale_processes.find(state)
    for pid, command in left.items():
        hint(f"{pid}: {command}")
    if len(left) == 1:
        raise Failed("1 process is still there", advice=f"Look at it, then end it: kill {min(left)}")
    raise Failed(f"{len(left)} processes are still there", advice="Look at them, then end them by number: kill <pid>")
