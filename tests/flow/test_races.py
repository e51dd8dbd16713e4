"""Whoever else wants something of a server while two hosts carry it about: a delete, a request, a drain, its guest.

One table for all operations of two hosts; every step of each, found where the action declares it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cells.context import target_cell
from cells.models import InstanceMapping
from cloud import killpoints
from compute import actions
from compute.lifecycle import REQUESTS
from compute.models import Flavor, Service
from compute.stepspec import On
from compute.virt.base import PowerState, VirtError
from tests.byhand import Cloud
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import claimed, homes, needed, until

Bodies = tuple[dict[str, Any], ...]
TO_LARGE = {"resize": {"flavorRef": "2"}}
MOMENTS = ("claimed", "worked", "committed")


@dataclass(frozen=True)
class Operation:
    """One of two hosts: the action's class, what is sent, and what leads to where it may begin."""

    key: str
    body: dict[str, Any]
    busy: str
    end: str  # vm_state when it is done
    before: Bodies = ()
    unopened: frozenset[str] = field(default=frozenset())  # steps that open only when somebody takes the server

    @property
    def steps(self) -> list[str]:
        """Of the main road."""
        return [spec.name for spec in actions.named(self.key).steps if spec.name not in self.unopened]


FORGET = frozenset({"forget_source"})
OPERATIONS = {
    "live-migrate": Operation("MigrateLive", two_hosts.LIVE, "migrating", "active"),
    "resize": Operation("Resize", TO_LARGE, "resize_prep", "resized", unopened=FORGET),
    "migrate": Operation("Migrate", {"migrate": None}, "resize_prep", "resized", unopened=FORGET),
    "confirm": Operation("ConfirmResize", {"confirmResize": None}, "resize_confirming", "active", (TO_LARGE,)),
    "revert": Operation("RevertResize", {"revertResize": None}, "resize_reverting", "active", (TO_LARGE,)),
}
STEPS = [(name, step) for name, operation in OPERATIONS.items() for step in operation.steps]
every_step = pytest.mark.parametrize(("name", "step"), STEPS, ids=[".".join(pair) for pair in STEPS])
# what may be asked of a server whatever goes on with it
ANY_TIME = {"lock", "unlock", "os-resetState", "os-getConsoleOutput", "forceDelete", "reboot"}
BODIES: dict[str, Any] = {
    "resize": {"flavorRef": "3"}, "createImage": {"name": "i"}, "os-migrateLive": two_hosts.LIVE["os-migrateLive"],
    "createBackup": {"name": "b", "backup_type": "daily", "rotation": 1},
}  # fmt: skip


@pytest.fixture
def two(cloud: Cloud) -> Cloud:
    """A second host in cell1 and none in cell2; larger flavors."""
    cloud.add_host("host3", "cell1")
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    for number in ("2", "3"):
        Flavor.objects.create(flavor_id=number, name=f"m1.{number}", vcpus=4, memory_mb=2048, disk_gb=2)
    return cloud


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], Any]], None]:
    """`meanwhile("step.worked:leave", do)`: `do()` once, when somebody comes to that point."""
    waiting: dict[str, Callable[[], Any]] = {}

    def reached(point: str, step: str = "", server: str = "") -> None:
        waiting.pop(f"{point}:{step}", lambda: None)()

    monkeypatch.setattr(killpoints, "reached", reached)
    return waiting.__setitem__


def asked(admin: Any, cloud: Cloud, name: str) -> str:
    """A server of which the operation was just asked."""
    server_id = cloud.boot(admin)
    for body in OPERATIONS[name].before:
        assert act(admin, server_id, body).status_code == 202
        cloud.work()
    answer = act(admin, server_id, OPERATIONS[name].body)
    assert answer.status_code in (202, 204), answer.content
    return server_id


def in_one_place(cloud: Cloud, server_id: str) -> None:
    """Its one guest is where its record says; nothing is open, needed or claimed beyond that."""
    stories.settled(cloud)
    row = cloud.row(server_id)
    assert homes(cloud, server_id) == [row.host]
    assert needed(cloud) == set()
    assert claimed(cloud, server_id) == (
        {"host1", "host3"} if row.vm_state == "resized" or "resize" in (row.task_state or "") else {row.host}
    )
    kept = {name for name, host in cloud.hosts.items() if host.driver._departed(server_id)}
    assert kept == (claimed(cloud, server_id) - {row.host})
    assert not [file for host in cloud.hosts.values() for file in host.driver._inbox.iterdir()]


def is_gone(cloud: Cloud, server_id: str) -> None:
    """Nothing of it is anywhere."""
    assert cloud.row(server_id).deleted
    stories.settled(cloud)
    assert (claimed(cloud, server_id), needed(cloud), homes(cloud, server_id)) == (set(), set(), [])
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete is True
    for host in cloud.hosts.values():
        assert host.driver._departed(server_id) == ""
        assert not list(host.driver._inbox.iterdir())


# -- a delete


@pytest.mark.parametrize("moment", MOMENTS)
@every_step
def test_a_delete_in_the_middle_leaves_nothing_anywhere(name, step, moment, admin, two, meanwhile):
    server_id = asked(admin, two, name)
    answers = []
    meanwhile(f"step.{moment}:{step}", lambda: answers.append(admin.delete(f"/servers/{server_id}").status_code))
    two.work()
    assert answers == [204]
    is_gone(two, server_id)


# -- a second request


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_other_request_is_a_conflict_and_changes_nothing(name, admin, two):
    server_id = asked(admin, two, name)
    seen, was = len(two.history(server_id)), two.row(server_id)
    truths = [f"task_state {OPERATIONS[name].busy}", f"vm_state {was.vm_state}"]
    for key in sorted({action.key for action in actions.every().values()} - ANY_TIME - {""}):
        answer = act(admin, server_id, {key: BODIES.get(key)})
        action = actions.keyed(key, (2, 96))
        cannot = f"Cannot '{action.called or action.name}' instance {server_id} while it is in"
        assert answer.status_code == 409, (key, answer.content)
        assert message(answer) in [f"{cannot} {truth}" for truth in truths]
    assert len(two.history(server_id)) == seen
    two.work()
    assert states(two, server_id) == (OPERATIONS[name].end, None)
    in_one_place(two, server_id)


@every_step
def test_the_same_request_again_at_any_step_is_a_conflict_until_it_is_over(name, step, admin, two):
    server_id = asked(admin, two, name)
    until(two, step)
    row = two.row(server_id)
    if row.task_state is None:  # the server is free, only its old host is not
        assert row.vm_state == OPERATIONS[name].end
        return
    answer = act(admin, server_id, OPERATIONS[name].body)
    assert answer.status_code == 409, answer.content
    assert message(answer).endswith(f"while it is in task_state {OPERATIONS[name].busy}")
    two.work()
    assert states(two, server_id) == (OPERATIONS[name].end, None)
    in_one_place(two, server_id)


# -- the user's two words


WORDS = ("confirmResize", "revertResize")


@pytest.mark.parametrize(("first", "second"), [WORDS, WORDS[::-1]])
def test_of_two_words_the_first_one_counts(first, second, admin, two):
    server_id = asked(admin, two, "resize")
    two.work()
    assert act(admin, server_id, {first: None}).status_code in (202, 204)
    busy = two.row(server_id).task_state
    answer = act(admin, server_id, {second: None})
    text = f"Cannot '{second}' instance {server_id} while it is in task_state {busy}"
    assert (answer.status_code, message(answer)) == (409, text)
    two.work()
    went = [action.action for action in two.history(server_id)]
    assert (went[-1], second in went) == (first, False)
    in_one_place(two, server_id)


def test_of_many_words_at_once_one_is_heard(admin, two):
    server_id = asked(admin, two, "resize")
    two.work()
    answers = stories.at_once(6, lambda number: act(admin, server_id, {WORDS[number % 2]: None}).status_code)
    assert sorted(status == 409 for status in answers) == [False, *[True] * 5]
    two.work()
    heard = [action.action for action in two.history(server_id) if action.action in WORDS]
    assert len(heard) == 1
    row = two.row(server_id)
    assert (row.flavor_id == "2") == (heard == ["confirmResize"])
    assert states(two, server_id) == ("active", None)
    in_one_place(two, server_id)


# -- drains


NOT_BEGUN = {("live-migrate", step) for step in ("pick", "check_destination", "check_source")}
NOWHERE_TO_GO = {(name, step) for name in ("resize", "migrate") for step in ("check_source", "pick")}


@every_step
def test_both_hosts_drain(name, step, admin, two):
    """What was begun ends; what was not is called off, with nothing done."""
    server_id = asked(admin, two, name)
    was = two.row(server_id)
    waits = until(two, step)
    for host in ("host1", "host3"):
        two_hosts.drain(two, host)
    if waits.host and waits.lane == REQUESTS:
        two_hosts.call_off(two, waits)
    two.work()
    if (name, step) in NOT_BEGUN | NOWHERE_TO_GO:
        assert states(two, server_id) == (was.vm_state, None)
        assert two.row(server_id).host == was.host
        assert two.history(server_id)[-1].message == "Error"
    else:
        assert states(two, server_id) == (OPERATIONS[name].end, None)
        assert two.history(server_id)[-1].message is None
    in_one_place(two, server_id)


# -- a destination that refuses late


LATE = [
    (name, spec.name, verb)
    for name, operation in OPERATIONS.items()
    for spec in actions.named(operation.key).steps
    for verb in {"expect": ["expect"], "finish": ["settle", "power_on"], "arrive": ["settle"]}.get(spec.name, [])
    if spec.on is On.DEST
]


@pytest.mark.parametrize(("name", "step", "verb"), LATE, ids=[".".join(late) for late in LATE])
def test_a_destination_that_refuses_late_leaves_one_guest_and_says_why(name, step, verb, admin, two):
    server_id = asked(admin, two, name)
    source = two.row(server_id).host
    dest = "host3" if source == "host1" else "host1"
    two.hosts[dest].driver.orders.fail(verb, times=99, error=VirtError)
    two.work()
    row = two.row(server_id)
    assert two.history(server_id)[-1].message == "Error"
    assert "failed to order" in row.fault["message"]
    if (name, step) == ("live-migrate", "arrive"):  # it had left for good: nobody can say where its memory is
        assert (row.vm_state, row.host, claimed(two, server_id)) == ("error", dest, {dest})
        return
    assert (row.vm_state, row.host) == ("active", source)
    in_one_place(two, server_id)
    stories.true_to_the_guest(two, server_id)


# -- its guest


@every_step
def test_a_guest_that_powers_itself_off_meanwhile_is_in_one_place(name, step, admin, two):
    server_id = asked(admin, two, name)
    until(two, step)
    for host in homes(two, server_id):
        two.hosts[host].driver.power_off_from_inside(server_id)
    two.work()
    in_one_place(two, server_id)
    row = two.row(server_id)
    assert two.hosts[row.host].driver.power_state(server_id) in (PowerState.RUNNING, PowerState.SHUTDOWN)
    assert row.vm_state in (OPERATIONS[name].end, "stopped", "active")
