"""What goes wrong: pauses, deaths, lost statements, clocks, brokers, hypervisors. And how all of it heals."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings

from compute.virt.base import GuestNotFound, PowerState
from tests.simulation import patches
from tests.simulation.client import Clients
from tests.simulation.cloud import Cloud, ask
from tests.simulation.kernel import Actor
from tests.simulation.patches import Away, Faults
from tests.simulation.plan import Harm, Plan
from tests.simulation.processes import Process


class Weather:
    """All harm of a story."""

    def __init__(self, cloud: Cloud, clients: Clients, plan: Plan) -> None:
        self.cloud, self.clients, self.plan, self.sim = cloud, clients, plan, cloud.sim
        self.armed: dict[str, list[list[Any]]] = {}  # by process: [moments left, harm], for kills and pauses
        self.statements: dict[str, list[list[Any]]] = {}
        self.commits: dict[str, list[list[Any]]] = {}
        self.away: list[tuple[str, str, float]] = []  # alias, process ("" all), until
        self.twins: list[Process] = []
        self.drained: set[str] = set()
        self.forced: set[str] = set()
        self.is_healed = False
        Faults.before, Faults.after, Faults.commit = self._before, self._after, self._commit
        self.sim.at_yield = self._at_yield

    def begin(self, harm: Harm) -> None:
        """Its time has come. In nobody's thread: it must not wait."""
        self.sim.say(f"harm: {harm}")
        getattr(self, "_" + harm.kind.replace(" ", "_"))(harm)

    def heal(self) -> None:
        """Nothing goes wrong any more, and everything runs."""
        self.is_healed = True
        self.armed.clear()
        self.statements.clear()
        self.commits.clear()
        self.away.clear()
        wire = self.cloud.wire
        wire.away.clear()
        wire.lost = wire.doubled = wire.slow = 0.0
        for machine in self.cloud.machines.values():
            machine.away_until, machine.slow, machine.failures = 0.0, 0.0, []
        for actor in self.sim.actors:
            actor.paused_until = 0.0
        for twin in self.twins:
            twin.kill()
        for process in list(self.cloud.processes.values()):
            process.paused_until = process.clock = 0.0
            process.restart_after = 1.0
            if process not in self.twins:
                process.start()
        wire.push_all()
        for host in sorted(self.forced):
            self.sim.at(self.sim.now + 8, partial(self._operator, "up again", host))
        for host in sorted(self.drained):
            self.sim.at(self.sim.now + 10, partial(self._operator, "undrain", host))

    # -- processes

    def _kill(self, harm: Harm) -> None:
        self.armed.setdefault(harm.target, []).append([harm.skip, harm])

    _pause = _pause_thread = _kill

    def _at_yield(self, actor: Actor, kind: str, text: str) -> None:
        if not self.armed or actor.process is None:
            return
        armed = self.armed.get(actor.process.name)
        if not armed:
            return
        one = armed[0]
        if one[1].number % 4 and not _works(actor):
            return  # three of four wait for somebody who is at work
        one[0] -= 1
        if one[0] >= 0:
            return
        armed.pop(0)
        harm: Harm = one[1]
        process = actor.process
        if harm.kind == "kill":
            self.sim.say(f"{process} is killed")
            process.restart_after = min(harm.length, 30.0)
            process.kill()
        elif harm.kind == "pause":
            self.sim.say(f"{process} is stopped for {harm.length} s")
            process.paused_until = self.sim.now + harm.length
        else:
            self.sim.say(f"{actor} is stopped for {harm.length} s")
            actor.paused_until = self.sim.now + harm.length

    def _restart(self, harm: Harm) -> None:
        process = self.cloud.processes[harm.target]
        process.restart_after = min(5.0, harm.length / 10)
        process.stop()

    def _twin(self, harm: Harm) -> None:
        process = self.cloud.processes[harm.target]
        if f"{process.name}-twin" in self.cloud.processes or self.is_healed:
            return
        process.restart_after = None
        twin = self.cloud.twin_of(process)
        twin.restart_after = None
        self.twins.append(twin)
        self.sim.at(self.sim.now + harm.length, twin.kill)

    def _clock(self, harm: Harm) -> None:
        self.cloud.processes[harm.target].clock += harm.length

    # -- databases

    def _statement(self, harm: Harm) -> None:
        self.statements.setdefault(harm.target, []).append([harm.skip, harm])

    def _commit_failed(self, harm: Harm) -> None:
        self.commits.setdefault(harm.target, []).append([harm.skip, harm])

    _commit_lost = _commit_failed

    def _database(self, harm: Harm) -> None:
        alias = harm.target if harm.target == "default" else f"cell:{settings.CELLS[harm.target]}"
        self.away.append((alias, harm.extra, self.sim.now + harm.length))

    def _restore(self, harm: Harm) -> None:
        """A backup is made now. Later the cell's processes are stopped, the backup is put in place, and they start."""
        alias = f"cell:{settings.CELLS[harm.target]}"
        self.sim.at(self.sim.now + harm.length, partial(self._put_in_place, alias, patches.snapshot(alias)))

    def _put_in_place(self, alias: str, backup: bytes) -> None:
        self.sim.say(f"{alias} is restored")
        self.cloud.is_restored = True
        for process in list(self.cloud.processes.values()):
            if alias == f"cell:{process.cell}" and process not in self.twins:
                process.restart_after = 5.0
                process.kill()
        for twin in self.twins:
            twin.kill()
        patches.restore(alias, backup)

    def _who(self) -> str:
        actor = self.sim.actor
        return actor.process.name if actor is not None and actor.process is not None else ""

    def _before(self, alias: str, sql: str) -> None:
        if self.away:
            who = self._who()
            for where, whose, until in self.away:
                if where == alias and until > self.sim.now and whose in ("", who):
                    raise Away("the database is away")
        if self.statements and self._due(self.statements, self._who(), odd=False, sql=sql):
            self.sim.say("this statement fails")
            raise Away("the statement failed")

    def _after(self, alias: str, sql: str) -> None:
        if self.statements and self._due(self.statements, self._who(), odd=True, sql=sql):
            self.sim.say("the answer to this statement is lost")
            raise Away("the answer is lost")

    def _due(self, armed: dict[str, list[list[Any]]], who: str, *, odd: bool, sql: str) -> bool:
        mine = armed.get(who)
        if not mine or bool(mine[0][1].number % 2) is not odd or sql.startswith(("SELECT", "BEGIN")):
            return False
        if mine[0][1].number % 4 and not _works(self.sim.actor):
            return False
        mine[0][0] -= 1
        if mine[0][0] >= 0:
            return False
        mine.pop(0)
        return True

    def _commit(self, alias: str) -> str:
        mine = self.commits.get(self._who())
        if not mine or (mine[0][1].number % 4 and not _works(self.sim.actor)):
            return ""
        mine[0][0] -= 1
        if mine[0][0] >= 0:
            return ""
        harm: Harm = mine.pop(0)[1]
        self.sim.say(f"{harm.kind}")
        return harm.kind.removeprefix("commit ")

    # -- brokers and hypervisors

    def _broker(self, harm: Harm) -> None:
        self.cloud.wire.away[harm.target] = self.sim.now + harm.length
        if harm.extra == "wiped":
            self.cloud.wire.wipe()
        self.sim.at(self.sim.now + harm.length + 0.01, self.cloud.wire.push_all)

    def _weather(self, harm: Harm) -> None:
        name, much = harm.extra, 30.0 if harm.extra == "slow" else 0.5
        setattr(self.cloud.wire, name, much)
        self.sim.at(self.sim.now + harm.length, lambda: setattr(self.cloud.wire, name, 0.0))

    def _hypervisor(self, harm: Harm) -> None:
        self.cloud.machines[harm.target].away_until = self.sim.now + harm.length

    def _slow(self, harm: Harm) -> None:
        machine = self.cloud.machines[harm.target]
        machine.slow = 20.0
        self.sim.at(self.sim.now + harm.length, lambda: setattr(machine, "slow", 0.0))

    def _verb(self, harm: Harm) -> None:
        verb, _, how = harm.extra.partition(":")
        after = how == "answer lost"
        self.cloud.machines[harm.target].failures.append((verb, "" if after else how, after))

    def _power(self, harm: Harm) -> None:
        process = self.cloud.processes[harm.target]
        machine = self.cloud.machines[harm.target]
        on = sorted(uuid for uuid, power in machine.powers().items() if power is PowerState.RUNNING)
        if not on or process.me is None or process.me.driver is None:
            return
        uuid = on[harm.number % len(on)]
        driver = process.me.driver
        machine.power_losses += 1
        work = driver.crash if harm.extra == "crash" else driver.power_off_from_inside

        def go_off() -> None:
            with suppress(GuestNotFound):  # destroyed a moment ago
                work(uuid)

        self.sim.spawn(f"{harm.target}/guest-{uuid[:8]}", process, go_off)

    # -- operators

    def _drain(self, harm: Harm) -> None:
        self.drained.add(harm.target)
        self._operator("drain", harm.target)
        self.sim.at(self.sim.now + harm.length, partial(self._operator, "undrain", harm.target))

    def _silence(self, harm: Harm) -> None:
        """The machine loses its power; an operator says so after a while, and evacuates it."""
        process, machine = self.cloud.processes[harm.target], self.cloud.machines[harm.target]
        process.restart_after = None
        process.kill()
        machine.power_losses += 1
        machine.state.run("UPDATE guests SET power = ? WHERE power IN (1, 3)", int(PowerState.SHUTDOWN))
        self.forced.add(harm.target)
        self.sim.at(self.sim.now + 65, partial(self._unless_back, "force down", harm.target))
        self.sim.at(self.sim.now + 70, partial(self._evacuate, harm.target))

    def _unless_back(self, verb: str, host: str) -> None:
        if not self.cloud.processes[host].is_alive:
            self._operator(verb, host)

    def _evacuate(self, host: str) -> None:
        if self.cloud.processes[host].is_alive:
            return
        alias = f"cell:{self.cloud.cell_of_host[host]}"
        here = {
            uuid for (uuid,) in ask(alias, "SELECT uuid FROM compute_instance WHERE host = ? AND deleted = 0", host)
        }
        for slot, server in sorted(self.clients.servers.items()):
            if server in here:
                self._operator("evacuate", host, slot)

    def _operator(self, verb: str, host: str, slot: int = -1) -> None:
        """By way of the API."""
        number = self.cloud.count("operator")
        process = next(
            (self.cloud.processes[n] for n in ("api-api1", "api-api2") if self.cloud.processes[n].is_alive), None
        )
        if process is None:
            return
        request_id = f"req-{UUID(int=(self.plan.seed << 16) + number, version=4)}"
        work = partial(self.clients.ask, -number, verb, slot, request_id, process, host)
        self.sim.spawn(f"{process.name}/operator-{number}", process, work)


def _works(actor: Actor | None) -> bool:
    """Whether it is at something that was asked for."""
    return actor is not None and ("/task-" in actor.name or "/request-" in actor.name)
