"""Servers of a host that is lost are built anew on another one; who may be, and who dies meanwhile."""

from __future__ import annotations

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Service
from compute.operations import registry
from compute.virt.base import ImageUnusable, PowerState
from compute.virt.fake.effects import Effect
from tests.byhand import DISK
from tests.flow import stories, two_hosts
from tests.flow.lost_hosts import WHEN, back, beats, evacuate, gone_host, is_at, lost, migration, moved_out, until, work
from tests.flow.stories import Killed, act, message, states
from tests.flow.two_hosts import booted, claimed, homes, needed

STEPS = [spec.name for spec in registry.named("Evacuate").steps]


def test_a_host_that_works_keeps_its_servers(admin, cloud):
    server_id = booted(admin, cloud)
    answer = evacuate(admin, server_id)
    assert (answer.status_code, message(answer)) == (400, "Compute service of host1 is still in use.")
    assert states(cloud, server_id) == ("active", None)


@pytest.mark.parametrize("how", ["silent", "deregistered"])
def test_a_host_that_is_only_silent_may_still_run_its_guests(how, admin, cloud):
    server_id = booted(admin, cloud)
    beats(cloud, "host1", ago=3600)
    if how == "deregistered":
        with target_cell(cloud.cells["cell1"]):
            Service.objects.filter(host="host1").update(last_seen_up=timezone.now(), ended_at=timezone.now())
    answer = evacuate(admin, server_id)
    assert answer.status_code == 409
    assert "it is not confirmed that its guests are off" in message(answer)
    assert "openstack compute service set --down host1 nova-compute" in message(answer)
    assert states(cloud, server_id) == ("active", None)


@pytest.mark.parametrize("ago", [-1, 5], ids=["its clock is right", "its clock is behind"])
def test_a_host_that_reports_after_it_was_said_to_be_off_is_not_off(ago, admin, cloud):
    server_id = lost(admin, cloud)
    beats(cloud, "host1", ago=ago)
    answer = evacuate(admin, server_id)
    assert answer.status_code == 409
    assert "reports again: its guests may run" in message(answer)
    gone_host(admin, cloud)  # now it is
    assert evacuate(admin, server_id).status_code == 200


def test_only_admins_evacuate_and_a_lock_does_not_mind(api, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"lock": None})
    gone_host(admin, cloud)
    assert evacuate(api, server_id).status_code == 404  # another project's
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert cloud.row(server_id).host == "host3"


@pytest.mark.parametrize("where", ["pause", "suspend"])
def test_a_server_in_another_state_is_a_conflict(where, admin, cloud):
    server_id = lost(admin, cloud, where)
    answer = evacuate(admin, server_id)
    state = states(cloud, server_id)[0]
    assert (answer.status_code, message(answer)) == (
        409, f"Cannot 'evacuate' instance {server_id} while it is in vm_state {state}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "version", "status"),
    [
        ({}, "2.13", 400),
        ({"onSharedStorage": False}, "2.13", 200),
        ({"onSharedStorage": False}, "2.14", 400),
        ({"force": True}, "2.28", 400),
        ({"force": True}, "2.29", 400),  # where to?
        ({"force": True, "host": "host3"}, "2.29", 200),
        ({"force": True, "host": "host3"}, "2.67", 200),
        ({"force": True, "host": "host3"}, "2.68", 400),
        ({"host": "host3", "adminPass": "x"}, "2.96", 200),
        ({"host": "host1"}, "2.96", 400),
        ({"host": "nonsense"}, "2.96", 404),
        ({"host": ""}, "2.96", 400),
        ({"nonsense": 1}, "2.96", 400),
    ],
)
def test_the_body_by_microversion(more, version, status, admin, cloud):
    server_id = lost(admin, cloud)
    answer = evacuate(admin, server_id, version=version, **more)
    assert answer.status_code == status, answer.content
    if status == 200:
        assert answer.content == (b'{"adminPass":""}' if version == "2.13" else b"")
    else:
        assert states(cloud, server_id) == ("active", None)


def test_a_named_host_that_drains_or_is_down_is_refused_at_once(admin, cloud):
    server_id = lost(admin, cloud)
    two_hosts.drain(cloud, "host3")
    assert evacuate(admin, server_id, host="host3").status_code == 409
    two_hosts.drain(cloud, "host3", wanted=False)
    beats(cloud, "host3", ago=3600)
    assert evacuate(admin, server_id, host="host3").status_code == 400


def test_an_evacuated_server_is_built_anew_elsewhere_and_its_old_guest_goes_when_its_host_is_back(admin, cloud):
    server_id = lost(admin, cloud)
    answer = evacuate(admin, server_id)
    assert (answer.status_code, answer.content) == (200, b"")
    shown = admin.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("REBUILD", "rebuilding")
    assert (migration(admin, server_id)["status"], migration(admin, server_id)["migration_type"]) == (
        "accepted", "evacuation",
    )  # fmt: skip
    until(cloud, "build")
    assert claimed(cloud, server_id) == {"host1", "host3"}
    assert (migration(admin, server_id)["status"], needed(cloud)) == ("pre-migrating", {"host3"})

    work(cloud, "host1")

    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    assert claimed(cloud, server_id) == {"host3"}
    assert homes(cloud, server_id) == ["host1", "host3"]  # the first one is off with its machine
    assert (migration(admin, server_id)["status"], needed(cloud)) == ("done", set())
    evacuation = cloud.history(server_id)[-2]
    assert (evacuation.action, evacuation.message, evacuation.outcome) == ("evacuate", None, "from its image")

    assert back(cloud) == 1  # what it finds running is off before anything else
    assert cloud.hosts["host1"].driver.power_state(server_id) is PowerState.SHUTDOWN
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    cloud.work()

    is_at(cloud, server_id, "host3")
    assert migration(admin, server_id)["status"] == "completed"
    assert cloud.hosts["host1"].driver.effects(server_id)[-1].effect is Effect.DESTROYED


@pytest.mark.parametrize(
    ("before", "version", "state"),
    [((), "2.94", "active"), ((), "2.95", "stopped"), (("stop",), "2.94", "stopped"), (("stop",), "2.95", "stopped")],
)
def test_what_was_off_stays_off_and_since_2_95_all_do(before, version, state, admin, cloud):
    server_id = lost(admin, cloud, *before)
    assert evacuate(admin, server_id, version=version).status_code == 200
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3", state)


def test_a_server_in_error_is_evacuated_and_has_no_fault_any_more(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")
    assert cloud.row(server_id).fault is None


def test_one_that_was_never_built_is_built_elsewhere(admin, cloud):
    booted(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("spawn", error=ImageUnusable)
    server_id = cloud.boot(admin, "b", host="host1")
    assert states(cloud, server_id) == ("error", None)
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_the_server_is_evacuated(name, when, admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    two_hosts.killed(cloud, until(cloud, name), when)
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    assert [done.effect for done in cloud.hosts["host3"].driver.effects(server_id)] == [Effect.SPAWNED]
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_destination_killed_in_the_middle_of_building_builds_again(admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    step = until(cloud, "build")
    cloud.hosts["host3"].driver.faults.fail("spawn", error=Killed)
    with pytest.raises(Killed):
        work(cloud, "host1")
    assert two_hosts.restart(cloud, step) == 1
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("undo", ["cleanup_destination", "release_claim"])
def test_a_build_that_fails_is_taken_back_and_the_server_can_be_evacuated_again(undo, when, admin, cloud):
    server_id = lost(admin, cloud)
    cloud.hosts["host3"].driver.faults.fail("spawn", error=ImageUnusable)
    evacuate(admin, server_id)
    two_hosts.killed(cloud, until(cloud, undo), when)
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host1", ("active", None))
    assert (claimed(cloud, server_id), homes(cloud, server_id), needed(cloud)) == ({"host1"}, ["host1"], set())
    assert cloud.row(server_id).fault["message"] == "spawn failed as injected"
    assert (cloud.history(server_id)[-1].message, migration(admin, server_id)["status"]) == ("Error", "failed")

    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_no_room_anywhere_is_a_fault_and_changes_nothing(admin, cloud):
    server_id = lost(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host3").update(disabled=True)
    evacuate(admin, server_id)
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host1", ("active", None))
    assert "No valid host was found" in cloud.row(server_id).fault["message"]
    assert claimed(cloud, server_id) == {"host1"}


def test_what_an_earlier_stay_left_at_the_destination_is_not_taken_for_the_server(admin, cloud):
    server_id = booted(admin, cloud)
    stale = cloud.row(server_id).as_guest()
    cloud.hosts["host3"].driver.spawn(stale, lambda path: path.write_bytes(DISK))
    gone_host(admin, cloud)
    evacuate(admin, server_id)
    work(cloud, "host1")
    assert [done.effect for done in cloud.hosts["host3"].driver.effects(server_id)] == [
        Effect.SPAWNED, Effect.DESTROYED, Effect.SPAWNED,
    ]  # fmt: skip


def test_twenty_at_once_take_no_room_twice(admin, cloud):
    admin.send("put", f"/os-quota-sets/{admin.caller.project_id}", {"quota_set": {
        "instances": -1, "cores": -1, "ram": -1}})  # fmt: skip
    first = booted(admin, cloud)
    cloud.add_host("host5", "cell1", memory_mb=5 * 512)
    servers = [first, *(cloud.boot(admin, f"s{number}", host="host1") for number in range(19))]
    gone_host(admin, cloud)
    answers = stories.at_once(20, lambda number: evacuate(admin, servers[number]).status_code)
    assert answers == [200] * 20
    work(cloud, "host1")
    assert {cloud.row(server_id).host for server_id in servers} <= {"host3", "host5"}
    back(cloud)
    cloud.work()
    stories.settled(cloud)
    for server_id in servers:
        assert homes(cloud, server_id) == [cloud.row(server_id).host]
    assert cloud.used()["host1"] == (0, 0)
    assert cloud.used()["host5"][1] <= 5 * 512


def test_of_two_evacuations_of_one_server_one_wins(admin, cloud):
    server_id = lost(admin, cloud)
    assert sorted(stories.at_once(4, lambda _: evacuate(admin, server_id).status_code)) == [200, 409, 409, 409]
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_while_the_old_host_is_away_the_server_is_free(admin, cloud):
    server_id = moved_out(admin, cloud)
    for name in ("pause", "unpause", "soft reboot", "stop"):
        assert act(admin, server_id, stories.STORIES[name].body).status_code == 202
        work(cloud, "host1")
        assert states(cloud, server_id) == (stories.STORIES[name].end, None)
    two_hosts.drain(cloud, "host3")
    assert needed(cloud) == set()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_an_evacuation_leaves_nothing_anywhere(name, when, admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    step = until(cloud, name)
    if when != "before":
        step = two_hosts.claim(cloud, step)
        if when == "after the work":
            two_hosts.work(cloud, step)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    assert cloud.row(server_id).deleted
    if when != "before":
        cloud.hosts[step.host].finish(step) if step.host else two_hosts.restart(cloud, step)
    work(cloud, "host1")
    assert claimed(cloud, server_id) == set()
    back(cloud)
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_server_whose_state_was_reset_before_it_was_built_stays(admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    step = two_hosts.claim(cloud, until(cloud, "build"))
    act(admin, server_id, {"os-resetState": {"state": "active"}})
    cloud.hosts["host3"].finish(step)
    work(cloud, "host1")
    is_at(cloud, server_id, "host1")


def test_a_server_whose_state_was_reset_while_it_was_built_is_where_it_was_built(admin, cloud, monkeypatch):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    driver = cloud.hosts["host3"].driver
    spawn = driver.spawn

    def meanwhile(*args, **more):
        spawn(*args, **more)
        act(admin, server_id, {"os-resetState": {"state": "error"}})

    with monkeypatch.context() as patch:
        patch.setattr(driver, "spawn", meanwhile)
        work(cloud, "host1")
    back(cloud)
    cloud.work()
    assert states(cloud, server_id) == ("error", None)
    assert (cloud.row(server_id).host, homes(cloud, server_id), claimed(cloud, server_id)) == (
        "host3", ["host3"], {"host3"},
    )  # fmt: skip
    stories.settled(cloud)


def test_a_delete_while_it_is_built_leaves_nothing_anywhere(admin, cloud, monkeypatch):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    driver = cloud.hosts["host3"].driver
    spawn = driver.spawn

    def meanwhile(*args, **more):
        spawn(*args, **more)
        admin.delete(f"/servers/{server_id}")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "spawn", meanwhile)
        work(cloud, "host1")
    assert (cloud.row(server_id).deleted, homes(cloud, server_id)) == (True, ["host1"])
    back(cloud)
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


@pytest.mark.parametrize("fails", [False, True])
def test_a_disk_that_hosts_share_is_never_removed(fails, admin, cloud, monkeypatch):
    """The simulated hosts share none: here the destination finds one."""
    server_id = lost(admin, cloud)
    driver, removed = cloud.hosts["host3"].driver, []
    destroy = driver.destroy

    def noted(uuid, *, disk=True):
        removed.append(disk)
        destroy(uuid, disk=disk)

    monkeypatch.setattr(driver, "shares_disk", lambda _: True)
    monkeypatch.setattr(driver, "destroy", noted)
    if fails:
        driver.faults.fail("spawn", error=ImageUnusable)
    evacuate(admin, server_id)
    two_hosts.killed(cloud, until(cloud, "build"), "inside")
    work(cloud, "host1")
    assert removed == ([False] if fails else [])
    assert cloud.row(server_id).host == ("host1" if fails else "host3")
    if not fails:
        assert cloud.history(server_id)[-2].outcome == "with the disk it had"
