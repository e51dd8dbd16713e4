"""Dry run of emptying a host: which servers would move and how, which cannot, is there room. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.words import counted
from compute.errors import NoValidHost
from compute.hosts.drain_migrations import COLD, LIVE, advice_for
from compute.hosts.drain_moves import DrainMove, State
from compute.migration import moves
from compute.models import Instance
from compute.scheduler import select

SIZES = {"vcpus": "cpu_ratio", "memory_mb": "ram_ratio", "disk_gb": "disk_ratio"}


@dataclass(frozen=True, slots=True)
class Forecast:
    """The result of a dry run for one host, as of now."""

    live: int  # servers that would be live-migrated
    cold: int  # servers that would be cold-migrated
    busy: int  # servers with an action under way: the drain would wait for it
    blocked: tuple[DrainMove, ...]
    homeless: tuple[DrainMove, ...]  # movable servers for which no host has room now
    needs: dict[str, int]
    free: dict[str, int]  # sum over all hosts that would take servers
    hosts: int

    @property
    def fits(self) -> bool:
        """Whether the other hosts have room for all servers together and for each server alone."""
        return not self.homeless and all(self.needs[size] <= self.free[size] for size in SIZES)

    @property
    def sentence(self) -> str:
        """The result as text for people."""
        blocked = f", {len(self.blocked)} blocked" if self.blocked else ""
        busy = f", {self.busy} in the middle of something" if self.busy else ""
        size = "{vcpus} CPUs, {memory_mb} MiB and {disk_gb} GiB"
        others = counted(self.hosts, "other host")
        room = f"{size.format(**self.needs)} needed, {size.format(**self.free)} free on {others}"
        going = counted(self.live + self.cold, "server")
        return (f"{going} would move away ({self.live} live, {self.cold} cold){busy}{blocked}. "
                f"{'There is room' if self.fits else 'There is NOT room for all'}: {room}.")  # fmt: skip


def of_host(host: str) -> Forecast:
    """Run the dry run for a host of the targeted cell. Also reads the global database (scheduler hints, aggregates)."""
    servers = list(Instance.objects.living(host=host).order_by("pk"))
    idle = [server for server in servers if server.task_state is None]
    advice = {server.uuid: advice_for(server) for server in idle}
    going = [server for server in idle if server.vm_state in LIVE | COLD and not advice[server.uuid]]
    stuck = [DrainMove(uuid, State.BLOCKED, host, why=why) for uuid, why in advice.items() if why]
    hosts = {one.host: one for node in {server.node for server in going} for one in moves.candidates(node)}
    takers = [one for one in hosts.values() if one.host != host and one.up and one.enabled and not one.draining]
    live = sum(server.vm_state in LIVE for server in going)
    return Forecast(
        live, len(going) - live, len(servers) - len(going) - len(stuck), tuple(stuck),
        tuple(line for server in going if (line := _homeless(server))),
        {size: sum(getattr(server, size) for server in going) for size in SIZES},
        {size: int(sum(_free(one, size) for one in takers)) for size in SIZES}, len(takers),
    )  # fmt: skip


def _homeless(server: Instance) -> DrainMove | None:
    try:
        moves.possible(server, moves.wanted(server))
    except NoValidHost as none:
        return DrainMove(server.uuid, State.BLOCKED, server.host, why=f"no room: {none}")
    return None


def _free(one: select.HostState, size: str) -> float:
    node = one.node
    return float(getattr(node, size) * getattr(node, SIZES[size]) - getattr(node, f"{size}_used"))
