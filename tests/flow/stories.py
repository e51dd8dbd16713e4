"""What the stories of single actions have in common: how a server gets there, and what everyone asks of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import Sum
from django.utils import timezone

from cells.context import target_cell
from compute.models import Allocation, ComputeNode, Instance, InstanceAction, Step
from compute.virt.base import HypervisorUnavailable, PowerState
from tests.byhand import Cloud

LIVE = {"active": PowerState.RUNNING, "paused": PowerState.PAUSED, "suspended": PowerState.SUSPENDED,
        "stopped": PowerState.SHUTDOWN}  # fmt: skip


class Killed(BaseException):
    """kill -9 while a verb of the driver was running: `driver.faults.fail(verb, error=Killed)`."""


@dataclass(frozen=True)
class Story:
    """One action: what is sent, from where, through what, to where."""

    name: str  # in os-instance-actions and in texts
    body: dict[str, Any]
    busy: str
    end: str
    event: str
    verb: str  # of the driver
    before: tuple[str, ...] = ()  # stories that lead to where it may begin
    wrong: tuple[str, ...] = ()  # stories that lead to where it may not
    wrong_state: str = ""
    failed: str = ""  # vm_state after the verb failed; "" = as before


STORIES = {
    "pause": Story("pause", {"pause": None}, "pausing", "paused", "compute_pause_instance", "pause",
                   wrong=("stop",), wrong_state="stopped"),
    "unpause": Story("unpause", {"unpause": None}, "unpausing", "active", "compute_unpause_instance", "unpause",
                     before=("pause",), wrong_state="active"),
    "suspend": Story("suspend", {"suspend": None}, "suspending", "suspended", "compute_suspend_instance", "suspend",
                     wrong=("pause",), wrong_state="paused"),
    "resume": Story("resume", {"resume": None}, "resuming", "active", "compute_resume_instance", "resume",
                    before=("suspend",), wrong_state="active"),
    "stop": Story("stop", {"os-stop": None}, "powering-off", "stopped", "compute_stop_instance", "save_timer",
                  wrong=("stop",), wrong_state="stopped"),
    "start": Story("start", {"os-start": None}, "powering-on", "active", "compute_start_instance", "power_on",
                   before=("stop",), wrong_state="active"),
    "soft reboot": Story("reboot", {"reboot": {"type": "SOFT"}}, "rebooting", "active", "compute_reboot_instance",
                         "reboot_hard", wrong=("stop",), wrong_state="stopped"),
    "hard reboot": Story("reboot", {"reboot": {"type": "hard"}}, "rebooting_hard", "active",
                         "compute_reboot_instance", "reboot_hard", before=("pause",), failed="error"),
    "create image": Story("createImage", {"createImage": {"name": "snap"}}, "image_snapshot", "active",
                          "compute_snapshot_instance", "snapshot"),
}  # fmt: skip


EVERY = [*STORIES, "delete", "create"]


def just_over() -> datetime:
    """A moment ago by every clock: SQLite's counts in milliseconds, and is behind ours."""
    return timezone.now() - timedelta(seconds=1)


def act(api: Any, server_id: str, body: dict[str, Any], version: str = "2.96") -> Any:
    """POST /servers/{id}/action."""
    return api.send("post", f"/servers/{server_id}/action", body, version=version)


def message(answer: Any) -> str:
    """The text of an error, whatever its kind."""
    return next(iter(answer.json().values()))["message"]


def states(cloud: Cloud, server_id: str) -> tuple[str, str | None]:
    """(vm_state, task_state) on record."""
    row = cloud.row(server_id)
    return row.vm_state, row.task_state


def lead(api: Any, cloud: Cloud, server_id: str, names: tuple[str, ...]) -> None:
    """Carry a server through some stories."""
    for name in names:
        answer = act(api, server_id, STORIES[name].body)
        assert answer.status_code == 202, answer.content
        cloud.work()
        assert states(cloud, server_id) == (STORIES[name].end, None)


def ready(api: Any, cloud: Cloud, story: Story) -> str:
    """A server where the story may begin."""
    server_id = cloud.boot(api)
    lead(api, cloud, server_id, story.before)
    return server_id


def last_action(api: Any, server_id: str) -> dict[str, Any]:
    """The newest entry of os-instance-actions, with its events."""
    path = f"/servers/{server_id}/os-instance-actions"
    newest = api.get(path).json()["instanceActions"][0]
    return api.get(f"{path}/{newest['request_id']}").json()["instanceAction"]


def later(cloud: Cloud) -> None:
    """Time passes: what waits for its next try is due."""
    for cell in cloud.cells.values():
        with target_cell(cell):
            Step.objects.filter(state="queued").update(not_before=None)


def settled(cloud: Cloud) -> None:
    """Nothing is open, busy, leaked or claimed too often, anywhere."""
    guests = {uuid for host in cloud.hosts.values() for uuid in host.driver.guests()}
    launched: set[str] = set()
    for cell in cloud.cells.values():
        with target_cell(cell):
            assert not Step.objects.filter(state__in=["queued", "running", "waiting"]).exists()
            assert not InstanceAction.objects.filter(finished_at__isnull=True).exists()
            living = Instance.objects.filter(deleted=False)
            assert not living.filter(task_state__isnull=False).exists()
            placed = living.exclude(launched_at=None).exclude(vm_state="shelved_offloaded")
            here = set(placed.values_list("uuid", flat=True))
            assert set(Allocation.objects.values_list("server_id", flat=True)) == here
            launched |= here
            for node in ComputeNode.objects.all():
                held = node.allocations.aggregate(cpus=Sum("vcpus"), memory=Sum("memory_mb"), disk=Sum("disk_gb"))
                used = (node.vcpus_used, node.memory_mb_used, node.disk_gb_used)
                assert used == (held["cpus"] or 0, held["memory"] or 0, held["disk"] or 0)
    assert guests == launched


def true_to_the_guest(cloud: Cloud, server_id: str) -> None:
    """The record says what the hypervisor says."""
    row = cloud.row(server_id)
    actual = cloud.host_of(server_id).driver.power_state(server_id)
    assert row.power_state == actual == LIVE[row.vm_state]


def begin(name: str, api: Any, cloud: Cloud) -> str:
    """A server with the action asked for and its first step waiting."""
    if name == "create":
        server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
        cloud.schedule()
    elif name == "delete":
        server_id = cloud.boot(api)
        api.delete(f"/servers/{server_id}")
    else:
        server_id = ready(api, cloud, STORIES[name])
        assert act(api, server_id, STORIES[name].body).status_code == 202
    return server_id


def ends_well(name: str, cloud: Cloud, server_id: str) -> None:
    """Where the action leads when nothing goes wrong."""
    if name == "delete":
        assert cloud.row(server_id).deleted
    else:
        assert states(cloud, server_id) == (STORIES[name].end if name in STORIES else "active", None)
        true_to_the_guest(cloud, server_id)
    assert cloud.history(server_id)[-1].message is None
    settled(cloud)


def only_step(cloud: Cloud) -> Step:
    """The one step that waits."""
    [(_, step)] = cloud.queued()
    return step



def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work(n)` in so many threads that start together; what they returned."""
    barrier, results = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait(10)
            results.append(work(number))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == count
    return results


# -- what is asked of every action


def runs_through(story: Story, api: Any, cloud: Cloud) -> str:
    """Request, busy, end, history; the claims as they were."""
    server_id = ready(api, cloud, story)
    before, claimed = cloud.row(server_id).vm_state, cloud.used()
    assert act(api, server_id, story.body).status_code == 202
    assert states(cloud, server_id) == (before, story.busy)
    open_action = last_action(api, server_id)
    assert (open_action["action"], open_action["message"]) == (story.name, None)
    assert [(e["event"], e["result"]) for e in open_action["events"]] == [(story.event, None)]

    cloud.work()

    assert states(cloud, server_id) == (story.end, None)
    true_to_the_guest(cloud, server_id)
    done = last_action(api, server_id)
    assert done["message"] is None
    assert [(e["event"], e["result"]) for e in done["events"]] == [(story.event, "Success")]
    assert cloud.used() == claimed
    settled(cloud)
    return server_id


def is_refused(story: Story, api: Any, admin: Any, stranger: Any, reader: Any, cloud: Cloud) -> None:
    """Wrong state, busy, other project, reader, locked: nothing of it leaves a trace."""
    server_id = ready(api, cloud, story)
    _ask_wrongly(story, server_id, stranger, reader)
    act(api, server_id, {"lock": None})
    seen = len(cloud.history(server_id))
    answer = act(api, server_id, story.body)
    if story.name == "createImage":  # the one action a lock does not mind
        assert answer.status_code == 202
    else:
        assert (answer.status_code, message(answer)) == (409, f"Instance {server_id} is locked")
        assert len(cloud.history(server_id)) == seen
        assert act(admin, server_id, story.body).status_code == 202  # a lock does not hold an admin
    act(api, server_id, {"unlock": None})
    busy = act(api, server_id, STORIES["create image"].body)
    text = f"Cannot 'createImage' instance {server_id} while it is in task_state {story.busy}"
    assert (busy.status_code, message(busy)) == (409, text)
    cloud.work()
    settled(cloud)


def is_refused_in_the_wrong_state(story: Story, api: Any, cloud: Cloud) -> None:
    """409 with Nova's text, and nothing is journaled."""
    server_id = cloud.boot(api)
    lead(api, cloud, server_id, story.wrong)
    seen = len(cloud.history(server_id))
    answer = act(api, server_id, story.body)
    text = f"Cannot '{story.name}' instance {server_id} while it is in vm_state {story.wrong_state}"
    assert (answer.status_code, message(answer)) == (409, text)
    assert answer.json()["conflictingRequest"]["code"] == 409
    assert len(cloud.history(server_id)) == seen


def failure_leads_out(story: Story, api: Any, admin: Any, cloud: Cloud) -> None:
    """The driver fails: idle, the reason on record, and the same request works the next time."""
    server_id = ready(api, cloud, story)
    before = cloud.row(server_id).vm_state
    cloud.host_of(server_id).driver.faults.fail(story.verb)
    assert act(api, server_id, story.body).status_code == 202
    cloud.work()
    assert states(cloud, server_id) == (story.failed or before, None)
    failed = last_action(admin, server_id)
    assert (failed["message"], failed["events"][0]["result"]) == ("Error", "Error")
    assert "failed as injected" in failed["events"][0]["details"]
    assert "Traceback" in failed["events"][0]["traceback"]
    assert last_action(api, server_id)["events"][0].get("traceback") is None
    settled(cloud)

    assert act(api, server_id, story.body).status_code == 202
    cloud.work()
    expected = before if story.name == "createImage" else story.end
    assert states(cloud, server_id) == (expected, None)
    true_to_the_guest(cloud, server_id)


def hypervisor_comes_back(story: Story, api: Any, cloud: Cloud) -> None:
    """A failure worth trying again is tried again, and recovers by itself."""
    server_id = ready(api, cloud, story)
    cloud.host_of(server_id).driver.faults.fail(story.verb, times=2, error=HypervisorUnavailable)
    assert act(api, server_id, story.body).status_code == 202
    for _ in range(2):
        cloud.work()
        assert cloud.row(server_id).task_state == story.busy
        assert last_action(api, server_id)["message"] is None
        later(cloud)
    cloud.work()
    assert states(cloud, server_id) == (story.end, None)
    assert last_action(api, server_id)["events"][0]["result"] == "Success"
    settled(cloud)


def _ask_wrongly(story: Story, server_id: str, stranger: Any, reader: Any) -> None:
    unknown = act(stranger, server_id, story.body)
    assert (unknown.status_code, message(unknown)) == (404, f"Instance {server_id} could not be found.")
    forbidden = act(reader, server_id, story.body)
    assert forbidden.status_code == 403
    assert message(forbidden).startswith("Policy doesn't allow os_compute_api:")
