"""A cloud without processes: the test itself is the scheduler, the conductors and the hosts.

Everything below the message is real (rows, claims, steps, the fake driver); only *when* a worker looks is
in the test's hand, so nothing sleeps and nothing is mocked.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from django.db import connections
from django.utils import timezone

from cells.context import target_cell
from cells.models import BuildRequest, Cell, HostMapping
from cloud.images import service
from cloud.images.models import Image
from compute.builds import build
from compute.models import ComputeNode, Flavor, Instance, InstanceAction, Service, Step
from compute.operations import journal, recovery, registry, runner
from compute.placement import inventory
from compute.shutdown import grace
from compute.virt.fake.driver import FakeDriver
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher

DISK = b"\xeb\xfe".ljust(512, b"\0")  # a boot sector that does nothing


class Host:
    """One compute host driven by hand."""

    def __init__(self, name: str, cell: Cell, **options: Any) -> None:
        self.name, self.cell = name, cell
        self.driver = FakeDriver(name, **options)
        self.incarnation = str(uuid4())
        self.report()

    def report(self, zone: str = "nova") -> None:
        """What a real host writes when it starts."""
        now = timezone.now()
        with target_cell(self.cell):
            Service.objects.update_or_create(
                binary="nova-compute", host=self.name,
                defaults={"last_seen_up": now, "availability_zone": zone, "incarnation": self.incarnation},
            )  # fmt: skip
            inventory.record(self.name, self.driver.nodes())
        HostMapping.objects.get_or_create(host=self.name, defaults={"cell": self.cell})

    @property
    def worker(self) -> str:
        """Its name in the journal."""
        return f"nova-compute@{self.name}"

    def begin(self, step_id: int) -> Step | None:
        """Claim a step and go no further: where a kill -9 leaves it."""
        with target_cell(self.cell):
            return journal.claim(step_id, self.worker, self.incarnation, host=self.name)

    def finish(self, step: Step) -> None:
        """Go on with a step that was begun."""
        with target_cell(self.cell):
            runner.run_step(registry.named(step.action.key), step, self.driver)

    def run(self, step_id: int) -> bool:
        """Deliver one message; False when there was nothing to do."""
        step = self.begin(step_id)
        if step is not None:
            self.finish(step)
        return step is not None

    def restart(self) -> int:
        """A new life, that looks after what the last one left."""
        self.incarnation = str(uuid4())
        self.report()
        with target_cell(self.cell):
            return recovery.recover(self.worker, self.incarnation, list)

    @contextmanager
    def with_watcher(self) -> Iterator[ShutdownWatcher]:
        """As in a host's process: steps wait for guests without a thread. Leaving the block kills only the watcher."""
        watcher = ShutdownWatcher(self.driver, self._hear)
        watcher.start()
        grace.set_watcher(watcher)
        try:
            for step in self.waiting():
                watcher.recheck(step.server_id)
            yield watcher
        finally:
            grace.set_watcher(None)
            watcher.close(10)

    def waiting(self) -> list[Step]:
        """Its steps that wait."""
        with target_cell(self.cell):
            return list(Step.objects.filter(host=self.name, state=Step.State.WAITING).order_by("pk"))

    def _hear(self, server_id: str, timer: ShutdownTimer) -> None:
        """What the recorder of a host does with what its watcher sees."""
        try:
            with target_cell(self.cell):
                journal.record_timer(self.name, server_id, timer)
        finally:
            if threading.current_thread() is not threading.main_thread():
                connections.close_all()


class Cloud:
    """Cells, hosts and what a boot needs."""

    def __init__(self, cells: dict[str, Cell]) -> None:
        self.cells = cells
        self.flavor = Flavor.objects.create(
            flavor_id="1", name="m1.tiny", vcpus=1, memory_mb=512, disk_gb=1, extra_specs={}
        )
        self.image = Image.objects.create(
            id=str(uuid4()), name="tiny", status="active", visibility="public", owner="x", disk_format="raw",
            container_format="bare", size=len(DISK), virtual_size=len(DISK),
            checksum=hashlib.md5(DISK).hexdigest(),
        )  # fmt: skip
        service.path(self.image.id).parent.mkdir(parents=True, exist_ok=True)
        service.path(self.image.id).write_bytes(DISK)
        self.hosts = {
            "host1": Host("host1", cells["cell1"]),
            "host2": Host("host2", cells["cell2"]),
        }

    def add_host(self, name: str, cell: str, **options: Any) -> Host:
        """One more host."""
        self.hosts[name] = Host(name, self.cells[cell], **options)
        return self.hosts[name]

    def body(self, name: str = "a", **more: Any) -> dict[str, Any]:
        """A body for POST /servers."""
        server = {"name": name, "flavorRef": "1", "imageRef": self.image.id, "networks": "none", **more}
        return {"server": server}

    def boot(self, api: Any, name: str = "a", **more: Any) -> str:
        """Create a server, do everything, and return its id."""
        answer = api.send("post", "/servers", self.body(name, **more))
        assert answer.status_code == 202, answer.content
        self.work()
        return answer.json()["server"]["id"]

    def schedule(self) -> int:
        """What a scheduler does with every build request."""
        return sum(build.place(r.server_id) for r in list(BuildRequest.objects.all()))

    def queued(self) -> list[tuple[Cell, Step]]:
        """Every queued step, oldest first."""
        found = []
        for cell in self.cells.values():
            with target_cell(cell):
                found += [(cell, s) for s in Step.objects.filter(state="queued").order_by("pk")]
        return found

    def work(self) -> None:
        """Deliver everything until nothing is left to do."""
        for _ in range(50):
            moved = self.schedule()
            for cell, step in self.queued():
                moved += self._deliver(cell, step)
            if not moved:
                return
        raise AssertionError(f"work without end: {self.queued()}")

    def work_until(self, is_so: Callable[[], Any], seconds: float = 60) -> None:
        """Deliver what there is until something is so; for what a watcher does in its own time."""
        deadline = time.monotonic() + seconds
        self.work()
        while not is_so():
            assert time.monotonic() < deadline, f"still not so after {seconds} s"
            time.sleep(0.01)
            self.work()
        self.work()

    def _deliver(self, cell: Cell, step: Step) -> bool:
        if step.host:
            return self.hosts[step.host].run(step.pk)
        with target_cell(cell):
            claimed = journal.claim(step.pk, "nova-conductor@test", "c")
            if claimed is None:
                return False
            runner.run_step(registry.named(claimed.action.key), claimed, None)
            return True

    def row(self, server_id: str) -> Instance:
        """The server's row, wherever it is (deleted or not)."""
        for cell in self.cells.values():
            with target_cell(cell):
                found = Instance.objects.filter(uuid=server_id).first()
                if found is not None:
                    return found
        raise AssertionError(f"no row of server {server_id}")

    def host_of(self, server_id: str) -> Host:
        """The host a server is on."""
        return self.hosts[self.row(server_id).host]

    def history(self, server_id: str) -> list[InstanceAction]:
        """The server's actions, oldest first."""
        with target_cell(f"cell:{self.cell_of(server_id).id}"):
            return list(InstanceAction.objects.filter(server_id=server_id).order_by("started_at", "pk"))

    def cell_of(self, server_id: str) -> Cell:
        """The cell a server's row is in."""
        alias = self.row(server_id)._state.db
        return next(cell for cell in self.cells.values() if cell.alias == alias)

    def used(self) -> dict[str, tuple[int, int]]:
        """(vcpus, memory) claimed of each host."""
        found = {}
        for cell in self.cells.values():
            with target_cell(cell):
                found |= {n.host: (n.vcpus_used, n.memory_mb_used) for n in ComputeNode.objects.all()}
        return found


