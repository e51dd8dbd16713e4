"""The ledger of `make chaos` notices what it is there for: each kind of spill, made by hand."""

from __future__ import annotations

import pytest

from compute.virt.base import PowerState
from tests.chaos.ledger import judge
from tests.chaos.records import Action, Effect, Records, Server, Step
from tests.chaos.story import Asked

UUID, REBOOT = "u-1", "req-2"


@pytest.fixture
def asked() -> list[Asked]:
    """A boot, then a reboot, both accepted."""
    return [
        Asked("req-1", "boot", UUID, "s1-a", 1.0, 202),
        Asked(REBOOT, "hard reboot", UUID, "", 10.0, 202),
    ]


@pytest.fixture
def books() -> Records:
    """Both were done once."""
    create = Action("cell1", 1, UUID, "create", "Create", "req-1", 1.0, 5.0, None, "done")
    create.steps = [Step(1, 1, "build", "host1", "done", 1, 1.0, 2.0, 5.0, "")]
    reboot = Action("cell1", 2, UUID, "reboot", "Reboot", REBOOT, 10.0, 15.0, None, "done")
    reboot.steps = [Step(2, 2, "reboot", "host1", "done", 1, 10.0, 11.0, 15.0, "")]
    return Records(
        servers={UUID: [Server(UUID, "s1-a", "cell1", "host1", "active", None, has_fault=False, deleted=False)]},
        actions={UUID: [create, reboot]},
        effects={UUID: [_effect(4.0, "spawned"), _effect(14.0, "rebooted", "2")]},
        guests={"host1": {UUID: PowerState.RUNNING}, "host2": {}},
        waiting=set(),
        images={},
    )


def _effect(at: float, verb: str, mark: str = "", host: str = "host1") -> Effect:
    return Effect(host, "cell1", at, UUID, verb, mark)


def _kinds(books: Records, asked: list[Asked]) -> set[str]:
    return {finding.kind for finding in judge(books, asked, "s1")}


def test_what_was_done_once_is_fine(books, asked):
    assert judge(books, asked, "s1") == []


def test_an_accepted_request_without_a_record_is_lost(books, asked):
    asked.append(Asked("req-3", "pause", UUID, "", 20.0, 202))
    assert _kinds(books, asked) == {"lost"}


def test_an_unanswered_request_without_a_record_was_not_accepted(books, asked):
    asked.append(Asked("req-3", "pause", UUID, "", 20.0, 0))
    assert _kinds(books, asked) == set()


def test_a_refused_request_that_was_carried_out_is_double(books, asked):
    asked[1].status = 409
    assert _kinds(books, asked) == {"double"}


def test_an_action_done_without_an_effect_is_lost(books, asked):
    books.effects[UUID].pop()
    assert _kinds(books, asked) == {"lost"}


def test_a_reboot_that_happened_twice_is_double(books, asked):
    books.effects[UUID].append(_effect(14.5, "rebooted", "2"))
    assert _kinds(books, asked) == {"double"}


def test_a_reboot_is_of_the_action_whose_mark_it_has(books, asked):
    books.actions[UUID][1].mark = "a mark"
    books.effects[UUID][-1].mark = "a mark"
    assert judge(books, asked, "s1") == []
    books.effects[UUID][-1].mark = "another one"
    assert _kinds(books, asked) == {"double", "lost"}


def test_an_effect_nobody_asked_for_is_double(books, asked):
    books.effects[UUID] += [_effect(20.0, "paused"), _effect(20.1, "unpaused")]
    assert _kinds(books, asked) == {"double"}


def test_a_guest_on_two_hosts_is_double(books, asked):
    books.guests["host2"][UUID] = PowerState.RUNNING
    assert _kinds(books, asked) == {"double"}


def test_a_record_that_is_not_true_is_lost(books, asked):
    books.guests["host1"][UUID] = PowerState.SHUTDOWN
    assert _kinds(books, asked) == {"lost"}


def test_a_failure_without_words_is_lost_and_one_with_words_is_not(books, asked):
    reboot = books.actions[UUID][1]
    books.effects[UUID].pop()
    reboot.message, reboot.outcome = "Error", "the host is on fire"
    assert _kinds(books, asked) == set()
    reboot.outcome = ""
    assert _kinds(books, asked) == {"lost"}


def test_what_is_open_or_busy_is_stuck(books, asked):
    books.actions[UUID][1].finished = None
    assert _kinds(books, asked) == {"stuck"}
    books.actions[UUID][1].finished = 15.0
    books.actions[UUID][1].steps[0].state = "running"
    assert _kinds(books, asked) == {"stuck"}
    books.actions[UUID][1].steps[0].state = "done"
    books.servers[UUID][0].task_state = "rebooting"
    assert _kinds(books, asked) == {"stuck"}


def test_an_error_needs_a_fault(books, asked):
    row = books.servers[UUID][0]
    row.vm_state = "error"
    assert _kinds(books, asked) == {"lost"}
    row.has_fault = True
    assert _kinds(books, asked) == set()


def test_a_request_recorded_twice_is_double(books, asked):
    twin = Action("cell1", 3, UUID, "reboot", "Reboot", REBOOT, 10.0, 15.0, "Error", "no")
    books.actions[UUID].append(twin)
    assert _kinds(books, asked) == {"double"}


def test_a_copy_that_is_done_has_an_image(books, asked):
    asked.append(Asked("req-3", "createImage", UUID, "s1-image-x", 20.0, 202))
    books.actions[UUID].append(
        Action("cell1", 3, UUID, "createImage", "CreateImage", "req-3", 20.0, 25.0, None, "done")
    )
    books.effects[UUID] += [_effect(22.0, "snapshot taken"), _effect(23.0, "snapshot taken")]
    assert _kinds(books, asked) == {"lost"}
    books.images["s1-image-x"] = ["active"]
    assert _kinds(books, asked) == set()


def test_an_image_that_never_came_is_leaked(books, asked):
    books.images["s1-image-x"] = ["queued"]
    assert _kinds(books, asked) == {"leaked"}


@pytest.fixture
def resized(books, asked) -> Records:
    """Resized after that, and it waits for its user's word on another host."""
    asked.append(Asked("req-3", "resize", UUID, "", 20.0, 202))
    resize = Action("cell1", 3, UUID, "resize", "Resize", "req-3", 20.0, 25.0, None, "done", "active")
    books.actions[UUID].append(resize)
    books.effects[UUID] += [
        _effect(21.0, "powered off by guest"), _effect(22.0, "migrated out"),
        _effect(23.0, "migrated in", host="host2"), _effect(24.0, "powered on", host="host2"),
    ]  # fmt: skip
    row = books.servers[UUID][0]
    row.vm_state, row.host = "resized", "host2"
    books.guests = {"host1": {}, "host2": {UUID: PowerState.RUNNING}}
    return books


def test_a_resize_that_waits_for_its_users_word_is_fine(resized, asked):
    assert judge(resized, asked, "s1") == []


def test_a_resized_server_that_was_on_and_is_off_is_lost(resized, asked):
    resized.guests["host2"][UUID] = PowerState.SHUTDOWN
    assert _kinds(resized, asked) == {"lost"}


def test_a_resize_that_went_nowhere_is_lost(resized, asked):
    resized.effects[UUID] = [one for one in resized.effects[UUID] if one.verb != "migrated in"]
    assert _kinds(resized, asked) == {"lost"}


def test_a_server_taken_back_though_nobody_asked_is_double(resized, asked):
    resized.effects[UUID].append(_effect(30.0, "taken back"))
    assert _kinds(resized, asked) == {"double"}


@pytest.fixture
def deleted(resized, asked) -> Records:
    """Deleted after the guest left its host, and before it arrived."""
    asked.append(Asked("req-4", "delete", UUID, "", 22.5, 204))
    resize = resized.actions[UUID][-1]
    resize.message, resize.outcome = "Error", "preempted: it was deleted"
    resized.actions[UUID].append(Action("cell1", 4, UUID, "delete", "Delete", "req-4", 22.5, 26.0, None, "done"))
    del resized.effects[UUID][-2:]
    resized.servers[UUID][0].deleted, resized.guests["host2"] = True, {}
    return resized


def test_a_server_deleted_on_its_way_is_destroyed_by_its_delete(deleted, asked):
    deleted.effects[UUID].append(_effect(25.0, "destroyed"))
    assert judge(deleted, asked, "s1") == []


def test_a_server_deleted_on_its_way_may_be_nowhere_and_must_not_arrive(deleted, asked):
    """Found by `make upgrade-test`: no host had the guest when the delete came to destroy it."""
    assert judge(deleted, asked, "s1") == []
    deleted.effects[UUID].append(_effect(25.0, "migrated in", host="host2"))
    assert "lost" in _kinds(deleted, asked)


def test_what_a_delete_destroys_is_not_taken_for_the_work_of_a_shelve_it_cut_off(books, asked):
    """Found by `make chaos`: both may destroy a guest, and the shelve was asked for first."""
    [server] = books.servers[UUID]
    server.vm_state, server.deleted, server.host = "deleted", True, "host1"
    books.guests["host1"] = {}
    asked += [Asked("req-3", "shelve", UUID, "", 20.0, 202), Asked("req-4", "delete", UUID, "", 21.0, 204)]
    shelve = Action("cell1", 3, UUID, "shelve", "Shelve", "req-3", 20.0, 30.0, "Error", "the server was deleted")
    shelve.steps = [Step(3, 3, "power_off", "host1", "cancelled", 0, 20.0, None, 21.0, "")]
    delete = Action("cell1", 4, UUID, "delete", "Delete", "req-4", 21.0, 25.0, None, "done")
    delete.steps = [Step(4, 4, "terminate", "host1", "done", 1, 21.0, 23.0, 25.0, "")]
    books.actions[UUID] += [shelve, delete]
    books.effects[UUID].append(_effect(24.0, "destroyed"))
    assert _kinds(books, asked) == set()


def test_who_deletes_a_shelved_server_finds_no_guest_and_who_deletes_another_must(books, asked):
    [server] = books.servers[UUID]
    server.vm_state, server.deleted, server.host = "deleted", True, ""
    books.guests["host1"] = {}
    asked += [Asked("req-3", "shelve", UUID, "", 20.0, 202), Asked("req-4", "delete", UUID, "", 31.0, 204)]
    shelve = Action("cell1", 3, UUID, "shelve", "Shelve", "req-3", 20.0, 30.0, None, "done")
    shelve.steps = [Step(3, 3, "offload", "host1", "done", 1, 20.0, 21.0, 30.0, "")]
    delete = Action("cell1", 4, UUID, "delete", "Delete", "req-4", 31.0, 31.1, None, "deleted; it had no host")
    books.actions[UUID] += [shelve, delete]
    books.effects[UUID].append(_effect(25.0, "destroyed"))
    assert judge(books, asked, "s1") == []
    books.effects[UUID].insert(-1, _effect(24.0, "destroyed"))  # of a shelve that was cut off, say
    books.effects[UUID][-1] = _effect(24.5, "spawned")
    assert "without an effect" in " ".join(finding.words for finding in judge(books, asked, "s1"))


def test_a_shelved_server_without_its_image_is_lost(books, asked):
    [server] = books.servers[UUID]
    server.vm_state, server.host = "shelved_offloaded", ""
    books.guests["host1"] = {}
    books.images = {"s1-b-shelved": ["active"]}
    assert {finding.words for finding in judge(books, asked, "s1")} == {
        "image s1-a-shelved of a shelved server", "image s1-b-shelved of no shelved server",
    }  # fmt: skip
