"""What stories of waiting have in common: every action that shuts a guest down, as far as its step that waits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from cells.context import target_cell
from compute.models import Flavor, InstanceAction, Step
from compute.virt.shutdown_timer import ShutdownTimer
from tests.byhand import Cloud, Host
from tests.flow import stories, two_hosts
from tests.flow.stories import act

GRACE = 3600  # seconds: no deadline comes by itself
HOST = "host1"


@dataclass(frozen=True)
class Way:
    """One action that shuts a guest down: what is asked, and where it ends."""

    step: str  # the one that waits
    end: str  # vm_state
    body: dict[str, Any] | None = None  # None: a delete
    before: tuple[str, ...] = ()  # ways that lead to where it may begin
    outcome: str = "guest shut down in"  # how the words of the step begin


WAYS = {
    "stop": Way("power_off", "stopped", {"os-stop": None}),
    "soft reboot": Way("reboot", "active", {"reboot": {"type": "SOFT"}}),
    "rescue": Way("power_off", "rescued", {"rescue": None}),
    "unrescue": Way("power_off", "active", {"unrescue": None}, ("rescue",)),
    "shelve": Way("power_off", "shelved_offloaded", {"shelve": None}),
    "rebuild": Way("power_off", "active", {"rebuild": {"imageRef": ""}}),
    "resize": Way("migrate_out", "resized", {"resize": {"flavorRef": "large"}}),
    "migrate": Way("migrate_out", "resized", {"migrate": None}),
    "revert": Way("power_off", "active", {"revertResize": None}, ("resize",)),
    "delete": Way("terminate", "deleted"),
    "soft delete": Way("power_off", "soft-delete"),
}


@dataclass
class Waiting:
    """A server whose guest is asked to go off, and does not."""

    cloud: Cloud
    server_id: str
    way: Way
    host: Host  # where it is asked
    asked_before: int  # signals of other stories

    @property
    def step(self) -> Step:
        """The step that waits, whatever becomes of it."""
        with target_cell(self.host.cell):
            steps = Step.objects.select_related("action").filter(server_id=self.server_id, name=self.way.step)
            return steps.latest("pk")

    @property
    def timer(self) -> ShutdownTimer:
        """As the hypervisor has it."""
        timer = self.host.driver.timer(self.server_id)
        assert timer is not None
        return timer

    def queued(self) -> Step:
        """Everything until the step that will wait is done, and nothing of that."""
        return two_hosts.until(self.cloud, self.way.step)

    def waiting_step(self) -> Step:
        """Go on until it waits; with a watcher."""
        self.cloud.work_until(lambda: self.step_state() == "waiting")
        return self.step

    def step_state(self) -> str:
        """queued, waiting …; "" before there is one."""
        with target_cell(self.host.cell):
            found = Step.objects.filter(server_id=self.server_id, name=self.way.step, action__key=self.newest().key)
            return str(found.latest("pk").state) if found.exists() else ""

    def newest(self) -> InstanceAction:
        """The action."""
        return self.cloud.history(self.server_id)[-1]

    def goes_off(self) -> None:
        """The guest does what it was asked."""
        self.host.driver.power_off_from_inside(self.server_id)

    def is_awake(self, seconds: float = 30) -> None:
        """Wait until nothing waits, and run nothing."""
        deadline = time.monotonic() + seconds
        while self.host.waiting():
            assert time.monotonic() < deadline, "it still waits"
            time.sleep(0.005)

    def is_over(self) -> bool:
        """Whether its action has ended."""
        return self.newest().finished_at is not None

    def ended_with(self, timer: ShutdownTimer) -> None:
        """One clock from the first signal to the end, on record with the step; and the server is where it was to go."""
        row, step = self.cloud.row(self.server_id), self.step
        assert (row.vm_state, row.task_state) == (self.way.end, None)
        assert self.newest().message is None
        kept = ShutdownTimer.load(step.timer)
        assert kept is not None
        assert (kept.begun, kept.deadline) == (timer.begun, timer.deadline)
        assert (step.state, kept.runs) == ("done", False)
        assert step.details.startswith(self.way.outcome)
        assert step.attempts <= 2
        assert step.deadline is None
        signals = [uuid for verb, uuid in self.host.driver.calls if verb == "signal_shutdown"]
        assert signals.count(self.server_id) - self.asked_before == kept.signals == 1
        with target_cell(self.host.cell):
            assert not Step.objects.filter(state__in=("queued", "running", "waiting")).exists()
            assert not InstanceAction.objects.filter(finished_at__isnull=True).exists()


def begin(name: str, admin: Any, cloud: Cloud, settings: Any) -> Waiting:
    """A server with this asked of it; its guest is deaf from now on."""
    settings.SHUTDOWN_TIMEOUT = GRACE
    settings.RECLAIM_INSTANCE_INTERVAL = 3600 if name == "soft delete" else 0
    way = WAYS[name]
    server_id = two_hosts.booted(admin, cloud, HOST)
    if name in ("resize", "revert"):
        Flavor.objects.create(flavor_id="large", name="m1.large", vcpus=2, memory_mb=1024, disk_gb=2, extra_specs={})
    for lead in way.before:
        ask(admin, cloud, server_id, WAYS[lead])
        cloud.work()
        assert stories.states(cloud, server_id) == (WAYS[lead].end, None)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    before = [uuid for verb, uuid in host.driver.calls if verb == "signal_shutdown"].count(server_id)
    ask(admin, cloud, server_id, way)
    return Waiting(cloud, server_id, way, host, before)


def ask(admin: Any, cloud: Cloud, server_id: str, way: Way) -> None:
    """Send it."""
    if way.body is None:
        answer = admin.delete(f"/servers/{server_id}?shutdown_type=SOFT")
    elif "rebuild" in way.body:
        answer = act(admin, server_id, {"rebuild": {"imageRef": cloud.image.id}})
    else:
        answer = act(admin, server_id, way.body)
    assert answer.status_code in (200, 202, 204), answer.content
