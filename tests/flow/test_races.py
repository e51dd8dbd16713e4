"""Whoever else wants something of a server while two hosts carry it about: a delete, a request, a drain, its guest.

One table for all operations of two hosts, and for those that build a server anew; every step of each, found where the
action declares it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cells.context import target_cell
from cells.models import InstanceMapping
from cloud import failpoints
from cloud.images.models import Image
from compute.models import Flavor, Service, Step
from compute.operations import registry
from compute.operations.action import REQUESTS
from compute.operations.step import On
from compute.power import sync
from compute.virt.base import PowerState, VirtError
from tests.byhand import Cloud
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states
from tests.flow.test_evacuate import back, gone_host, work
from tests.flow.test_evacuate import until as until_of_those_that_work
from tests.flow.two_hosts import claimed, homes, needed

Bodies = tuple[dict[str, Any], ...]
TO_LARGE = {"resize": {"flavorRef": "2"}}


@dataclass(frozen=True)
class Operation:
    """One of two hosts: the action's class, what is sent, and what leads to where it may begin."""

    key: str
    body: dict[str, Any]
    busy: str
    end: str  # vm_state when it is done
    before: Bodies = ()
    unopened: frozenset[str] = frozenset()  # steps that do not open here
    gone: bool = False  # its host is, and comes back in the end

    @property
    def steps(self) -> list[str]:
        """Of the main road."""
        return [spec.name for spec in registry.named(self.key).steps if spec.name not in self.unopened]


FORGET = frozenset({"cleanup_source"})
OPERATIONS = {
    "live-migrate": Operation("MigrateLive", two_hosts.LIVE, "migrating", "active"),
    "resize": Operation("Resize", TO_LARGE, "resize_prep", "resized", unopened=FORGET),
    "migrate": Operation("Migrate", {"migrate": None}, "resize_prep", "resized", unopened=FORGET),
    "confirm": Operation("ConfirmResize", {"confirmResize": None}, "resize_confirming", "active", (TO_LARGE,)),
    "revert": Operation("RevertResize", {"revertResize": None}, "resize_reverting", "active", (TO_LARGE,)),
    "rebuild": Operation("Rebuild", {"rebuild": {}}, "rebuilding", "active"),
    "rescue": Operation("Rescue", {"rescue": None}, "rescuing", "rescued"),
    "unrescue": Operation("Unrescue", {"unrescue": None}, "unrescuing", "active", ({"rescue": None},)),
    "shelve": Operation("Shelve", {"shelve": None}, "shelving", "shelved_offloaded"),
    "unshelve": Operation("Unshelve", {"unshelve": None}, "unshelving", "active", ({"shelve": None},),
                          unopened=frozenset({"power_on"})),
    "evacuate": Operation("Evacuate", {"evacuate": {}}, "rebuilding", "stopped", gone=True),
}  # fmt: skip
STEPS = [(name, step) for name, operation in OPERATIONS.items() for step in operation.steps]
every_step = pytest.mark.parametrize(("name", "step"), STEPS, ids=[".".join(pair) for pair in STEPS])
# what may be asked of a server whatever goes on with it
ANY_TIME = {"lock", "unlock", "os-resetState", "os-getConsoleOutput", "forceDelete", "reboot"}
HOSTS = ("host1", "host3")
BODIES: dict[str, Any] = {
    "resize": {"flavorRef": "3"}, "createImage": {"name": "i"}, "os-migrateLive": two_hosts.LIVE["os-migrateLive"],
    "createBackup": {"name": "b", "backup_type": "daily", "rotation": 1}, "rebuild": {}, "evacuate": {},
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
    """`meanwhile("step.worked:migrate_out", do)`: `do()` once, when somebody comes to that point."""
    waiting: dict[str, Callable[[], Any]] = {}

    def reached(point: str, step: str = "", server: str = "") -> None:
        waiting.pop(f"{point}:{step}", lambda: None)()

    monkeypatch.setattr(failpoints, "reached", reached)
    return waiting.__setitem__


def asked(admin: Any, cloud: Cloud, name: str) -> str:
    """A server of which the operation was just asked."""
    operation = OPERATIONS[name]
    server_id = cloud.boot(admin)
    for body in operation.before:
        assert send(admin, cloud, server_id, body).status_code < 300
        cloud.work()
    if operation.gone:
        gone_host(admin, cloud, cloud.row(server_id).host)
    answer = send(admin, cloud, server_id, operation.body)
    assert answer.status_code < 300, answer.content
    return server_id


def send(admin: Any, cloud: Cloud, server_id: str, body: dict[str, Any]) -> Any:
    """An action, with the image a rebuild has to name."""
    return act(admin, server_id, {"rebuild": {"imageRef": cloud.image.id}} if "rebuild" in body else body)


def to_the_end(cloud: Cloud, name: str) -> None:
    """Everything there is to do. A host that was gone comes back when the others have done their part."""
    lost = away(cloud) if OPERATIONS[name].gone else ()
    work(cloud, *lost)
    for host in lost:
        back(cloud, host)
    cloud.work()


def away(cloud: Cloud) -> list[str]:
    """Hosts that are gone."""
    with target_cell(cloud.cells["cell1"]):
        return list(Service.objects.filter(forced_down=True).values_list("host", flat=True))


def until(cloud: Cloud, name: str) -> Step:
    """Go on until a step waits, and not further."""
    return until_of_those_that_work(cloud, name, "nobody", *away(cloud))


def in_one_place(cloud: Cloud, server_id: str) -> None:
    """Its one guest is where its record says; nothing is open, needed or claimed beyond that."""
    stories.settled(cloud)
    row = cloud.row(server_id)
    assert homes(cloud, server_id) == ([row.host] if row.host else [])
    assert needed(cloud) == set()
    assert claimed(cloud, server_id) == ({*HOSTS} if row.vm_state == "resized" else {row.host} - {""})
    assert kept(cloud, server_id) == (claimed(cloud, server_id) - {row.host})
    assert not [file for host in cloud.hosts.values() for file in host.driver._inbox.iterdir()]


def kept(cloud: Cloud, server_id: str) -> set[str]:
    """Hosts that could have it back."""
    return {name for name, host in cloud.hosts.items() if host.driver._departed(server_id)}


def is_gone(cloud: Cloud, server_id: str) -> None:
    """Nothing of it is anywhere, neither on hosts nor among the images."""
    assert cloud.row(server_id).deleted
    stories.settled(cloud)
    assert (claimed(cloud, server_id), needed(cloud), homes(cloud, server_id)) == (set(), set(), [])
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete is True
    assert kept(cloud, server_id) == set()
    assert not [file for host in cloud.hosts.values() for file in host.driver._inbox.iterdir()]
    assert set(Image.objects.exclude(status="deleted").values_list("id", flat=True)) == {cloud.image.id}


# -- a delete


@every_step
def test_a_delete_in_the_middle_leaves_nothing_anywhere(name, step, admin, two, meanwhile):
    """At one moment of each step; the simulation (tests/simulation) has all others."""
    server_id = asked(admin, two, name)
    answers = []
    meanwhile(f"step.worked:{step}", lambda: answers.append(admin.delete(f"/servers/{server_id}").status_code))
    to_the_end(two, name)
    assert answers == [204]
    is_gone(two, server_id)


# -- a second request


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_other_request_is_a_conflict_and_changes_nothing(name, admin, two):
    server_id = asked(admin, two, name)
    seen, was = len(two.history(server_id)), two.row(server_id)
    reasons = [f"task_state {OPERATIONS[name].busy}", f"vm_state {was.vm_state}"]
    for key in sorted({action.key for action in registry.every().values()} - ANY_TIME - {""}):
        answer = send(admin, two, server_id, {key: BODIES.get(key)})
        action = registry.keyed(key, (2, 96))
        if answer.status_code == 400:  # what is wrong with its host is said first
            assert (key in ("evacuate", "os-migrateLive"), message(answer)[:18]) == (True, "Compute service of")
            continue
        cannot = f"Cannot '{action.called or action.name}' instance {server_id} while it is in"
        assert answer.status_code == 409, (key, answer.content)
        texts = [f"{cannot} {why}" for why in reasons]
        assert message(answer) in [*texts, *([] if was.host else [f"Instance {server_id} is not ready"])]
    assert len(two.history(server_id)) == seen
    to_the_end(two, name)
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
    answer = send(admin, two, server_id, OPERATIONS[name].body)
    assert answer.status_code == 409, answer.content
    assert message(answer).endswith(f"while it is in task_state {OPERATIONS[name].busy}")
    to_the_end(two, name)
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
NOWHERE_TO_GO = {(name, step) for name in ("resize", "migrate") for step in ("check_source", "pick")} | {
    ("evacuate", "pick"), ("unshelve", "pick"),
}  # fmt: skip


@every_step
def test_both_hosts_drain(name, step, admin, two):
    """What was begun ends; what was not is called off, with nothing done."""
    server_id = asked(admin, two, name)
    was = two.row(server_id)
    waits = until(two, step)
    for host in HOSTS:
        two_hosts.drain(two, host)
    if waits.host and waits.queue == REQUESTS:
        two_hosts.call_off(two, waits)
    to_the_end(two, name)
    if (name, step) in NOT_BEGUN | NOWHERE_TO_GO:
        assert states(two, server_id) == (was.vm_state, None)
        assert two.row(server_id).host == was.host
        assert two.history(server_id)[-1].message == "Error"
    else:
        assert states(two, server_id) == (OPERATIONS[name].end, None)
        assert two.history(server_id)[-1].message is None
    in_one_place(two, server_id)


# -- a destination that refuses late


REFUSALS = {"pre_migrate": ["pre_migrate"], "finish_migration": ["finish_migration", "power_on"], "build": ["spawn"]}
LATE = [
    (name, spec.name, verb)
    for name, operation in OPERATIONS.items()
    for spec in registry.named(operation.key).steps
    for verb in REFUSALS.get(spec.name, [])
    if spec.on is On.DEST and (name, verb) != ("live-migrate", "power_on")
]


@pytest.mark.parametrize(("name", "step", "verb"), LATE, ids=[".".join(late) for late in LATE])
def test_a_destination_that_refuses_late_leaves_one_guest_and_says_why(name, step, verb, admin, two):
    server_id = asked(admin, two, name)
    was = two.row(server_id)
    dest = next(host for host in HOSTS if host != was.host)
    for host in {*HOSTS} - {was.host}:
        two.hosts[host].driver.faults.fail(verb, times=99, error=VirtError)
    to_the_end(two, name)
    row = two.row(server_id)
    failed = [action for action in two.history(server_id) if action.key == OPERATIONS[name].key][-1]
    assert failed.message == "Error"
    assert "failed as injected" in row.fault["message"]
    if (name, step) == ("live-migrate", "finish_migration"):  # it had left for good: nobody can say where its memory is
        assert (row.vm_state, row.host, claimed(two, server_id)) == ("error", dest, {dest})
        return
    assert (row.vm_state, row.host) == (was.vm_state, was.host)
    in_one_place(two, server_id)


# -- its guest


@every_step
def test_a_guest_that_powers_itself_off_meanwhile_is_in_one_place(name, step, admin, two):
    server_id = asked(admin, two, name)
    until(two, step)
    for host in homes(two, server_id):
        two.hosts[host].driver.power_off_from_inside(server_id)
    to_the_end(two, name)
    in_one_place(two, server_id)
    row = two.row(server_id)
    if row.host:
        with target_cell(two.cells["cell1"]):
            sync.sync(row.host, two.hosts[row.host].driver)  # as a host does all the time
    row = two.row(server_id)
    assert row.vm_state in (OPERATIONS[name].end, "stopped", "active")
    assert row.power_state == (two.hosts[row.host].driver.power_state(server_id) if row.host else PowerState.NOSTATE)
