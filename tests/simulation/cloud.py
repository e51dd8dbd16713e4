"""The cloud of one simulation run: cells, machines, processes and brokers."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections

from cells.context import target_cell
from cells.models import Cell, HostMapping
from cloud.images import service
from cloud.images.models import Image
from compute.models import Flavor, Instance, Quota, Step
from tests.simulation import patches
from tests.simulation.kernel import Actor, Simulation
from tests.simulation.machines import Machine
from tests.simulation.plan import Plan
from tests.simulation.processes import Process
from tests.simulation.wire import Message, Wire

PROJECT = "a" * 32
FLAVORS = ((1, "m1.small", 1, 512, 1), (2, "m1.medium", 2, 1024, 1), (3, "m1.large", 4, 2048, 2))


class Cloud:
    """All parts of the simulated cloud, created anew for each run."""

    def __init__(self, sim: Simulation, plan: Plan, folder: Path) -> None:
        seed = plan.seed
        self.sim, self.folder = sim, folder
        self.dice = Random(f"cloud {seed}")
        self.harm: set[str] = set()  # the kinds of fault of this run
        self.is_restored = False  # a cell's database was restored from a backup
        self._counts: Counter[str] = Counter()
        self._loaded: Process | None = None
        sim.enter = self._enter
        self.wire = Wire(sim, Random(f"wire {seed}"), self._deliver)
        self.wire.put()
        self.cells = self._cells()
        self.image = self._stock()
        names = {"cell1": tuple(f"host{number}" for number in range(1, plan.hosts + 1))}
        names |= {"cell2": ("host4",)} if plan.second_cell else {}
        self.cell_of_host = {host: settings.CELLS[cell] for cell, hosts in names.items() for host in hosts}
        self.machines = {
            host: Machine(sim, host, Random(f"{host} {seed}"), self._made(folder / "inboxes"))
            for host in self.cell_of_host
        }
        self.broken_rules: list[str] = []
        self.processes: dict[str, Process] = {}
        for number in (1, 2):
            self._add(Process(self, "api", f"api{number}"))
        for number in range(1, plan.schedulers + 1):
            self._add(Process(self, "scheduler", f"scheduler{number}"))
        for cell, hosts in names.items():
            for number in (1, 2) if cell == "cell1" else (1,):
                self._add(Process(self, "conductor", f"{cell}-{number}", settings.CELLS[cell]))
            for host in hosts:
                self._add(Process(self, "host", host, settings.CELLS[cell], self.machines[host]))

    def start(self) -> None:
        """Start every process."""
        for process in list(self.processes.values()):
            process.start()

    def end(self) -> None:
        """Close the state of every machine."""
        for machine in self.machines.values():
            machine.state.close()

    # -- parts

    def _add(self, process: Process) -> Process:
        self.processes[process.name] = process
        return process

    def twin_of(self, process: Process) -> Process:
        """Start a second process of the same name."""
        twin = Process(self, process.role, process.host, process.cell, process.machine, twin="-twin")
        self.processes[twin.name] = twin
        twin.start()
        return twin

    @staticmethod
    def _made(folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        return folder

    def _cells(self) -> dict[str, Cell]:
        patches.empty()
        return {
            name: Cell.objects.create(id=uuid, name=name, database_url=f"sim://{name}",
                                      broker_url="" if name == "cell0" else f"sim://{name}")
            for name, uuid in settings.CELLS.items()
        }  # fmt: skip

    def _stock(self) -> str:
        for number, name, vcpus, memory, disk in FLAVORS:
            Flavor.objects.create(
                flavor_id=str(number), name=name, vcpus=vcpus, memory_mb=memory, disk_gb=disk, extra_specs={}
            )
        disk = patches._Http.DISK
        image = Image.objects.create(
            id=str(UUID(int=self.dice.getrandbits(128), version=4)), name="tiny", status="active", visibility="public",
            owner="x", disk_format="raw", container_format="bare", size=len(disk), virtual_size=len(disk),
            checksum=hashlib.md5(disk).hexdigest(),
        )  # fmt: skip
        service.path(image.id).parent.mkdir(parents=True, exist_ok=True)
        service.path(image.id).write_bytes(disk)
        for resource, limit in (("instances", 100), ("cores", 200), ("ram", 200_000)):
            Quota.objects.create(project_id=PROJECT, resource=resource, limit=limit)
        return str(image.id)

    def broker_of(self, cell: str) -> str:
        """Return the URL of a cell's broker."""
        return next((one.broker_url for one in self.cells.values() if one.id == cell), "")

    # -- process globals and messages

    def _enter(self, actor: Actor) -> None:
        process = actor.process
        if process is self._loaded or process is None:
            return
        if self._loaded is not None:
            self._loaded.save()
        process.load()
        self._loaded = process

    def forget_globals(self, process: Process) -> None:
        """Drop the loaded globals of the process's last incarnation."""
        if self._loaded is process:
            self._loaded = None

    def count(self, what: str) -> int:
        """Return the next number of a sequence."""
        self._counts[what] += 1
        return self._counts[what]

    def _deliver(self, url: str, message: Message) -> bool:
        listening = [one for one in self.processes.values() if one.is_alive and one.broker == url
                     and message.queue in one.listens and one.role != "api"]  # fmt: skip
        self.wire.dice.shuffle(listening)
        return any(process.take(message) for process in listening)

    # -- state

    def host_cells(self) -> None:
        """Create the host mappings, as an operator does with discover_hosts."""
        for host, cell in self.cell_of_host.items():
            HostMapping.objects.get_or_create(host=host, defaults={"cell_id": cell})

    def aliases(self) -> list[str]:
        """Return the database aliases of all cells."""
        return [f"cell:{uuid}" for uuid in settings.CELLS.values()]

    def row(self, server_id: str) -> Instance | None:
        """Return a server's row, from the cell that has one."""
        for alias in self.aliases():
            with target_cell(alias):
                found = Instance.objects.filter(uuid=server_id).first()
                if found is not None:
                    return found
        return None

    def open_steps(self) -> list[Step]:
        """Return the steps of all cells that have not ended."""
        found: list[Step] = []
        for alias in self.aliases():
            with target_cell(alias):
                found += Step.objects.filter(state__in=("queued", "running", "waiting")).select_related("action")
        return found


def ask(alias: str, question: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return rows of a database, without faults and yield points."""
    return list(connections[alias].connection.execute(question, values).fetchall())
