"""Servers of a host that is gone, built anew on another one; who dies meanwhile, and who comes back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute import actions, gone, power, recovery
from compute.actions import delete
from compute.models import Instance, InstanceAction, Service, Step
from compute.virt.base import HypervisorUnavailable, ImageUnusable, PowerState
from compute.virt.fake_effects import Effect
from tests.byhand import DISK
from tests.flow import stories, two_hosts
from tests.flow.stories import Killed, act, message, states
from tests.flow.two_hosts import LIVE, booted, claimed, homes, needed

STEPS = [spec.name for spec in actions.named("Evacuate").steps]
OLD = "2.94"  # the last version in which an evacuated server is powered on
WHEN = ["before", "inside", "after the work"]


def evacuate(admin, server_id, version=OLD, **more):
    return act(admin, server_id, {"evacuate": more}, version=version)


def force(admin, host, down=True):
    """The operator's word: it is off (or not any more)."""
    (service,) = admin.get(f"/os-services?host={host}", version="2.96").json()["services"]
    return admin.send("put", f"/os-services/{service['id']}", {"forced_down": down}, version="2.96")


def gone_host(admin, cloud, host="host1"):
    """It is off, and somebody says so."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=host).update(last_seen_up=timezone.now() - timedelta(seconds=1))
    answer = force(admin, host)
    assert answer.status_code == 200, answer.content


def beats(cloud, host, ago=0.0):
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=host).update(last_seen_up=timezone.now() - timedelta(seconds=ago))


def back(cloud, host="host1"):
    """It starts again: what a worker does first, in that order; its queued steps are the test's to deliver."""
    beats(cloud, host)
    driver = cloud.hosts[host].driver
    with target_cell(cloud.cells["cell1"]):
        off = gone.turn_off(host, driver)
    cloud.hosts[host].restart()
    with target_cell(cloud.cells["cell1"]):
        power.sync(host, driver, resume=True)
    return off


def work(cloud, *away):
    """Deliver everything, but nothing to hosts that are away."""
    for _ in range(50):
        moved = cloud.schedule()
        for cell, step in cloud.queued():
            moved += step.host not in away and cloud._deliver(cell, step)
        if not moved:
            return
    raise AssertionError(f"work without end: {cloud.queued()}")


def until(cloud, name, *away):
    """Go on until a step waits, and not further; by itself the first host is away."""
    for _ in range(20):
        for cell, step in cloud.queued():
            if step.name == name:
                return step
            if step.host not in (away or ("host1",)):
                cloud._deliver(cell, step)
    raise AssertionError(f"{name} never waited: {cloud.queued()}")


def lost(admin, cloud, *before):
    """A server on host1, which is gone."""
    server_id = booted(admin, cloud)
    stories.lead(admin, cloud, server_id, before)
    gone_host(admin, cloud)
    return server_id


def moved_out(admin, cloud):
    """Evacuated to host3, and its old host not back yet."""
    server_id = lost(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    return server_id


def is_at(cloud, server_id, host, state="active"):
    """One guest, on one host, as the record says, with the room of one server; nothing owed."""
    assert states(cloud, server_id) == (state, None)
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (cloud.row(server_id).host, homes(cloud, server_id), claimed(cloud, server_id)) == (host, [host], {host})
    assert needed(cloud) == set()


def migration(admin, server_id):
    return admin.get(f"/os-migrations?instance_uuid={server_id}", version="2.59").json()["migrations"][0]


# -- who may be evacuated


def test_a_host_that_works_keeps_its_servers(admin, cloud):
    server_id = booted(admin, cloud)
    answer = evacuate(admin, server_id)
    assert (answer.status_code, message(answer)) == (400, "Compute service of host1 is still in use.")
    assert states(cloud, server_id) == ("active", None)


@pytest.mark.parametrize("how", ["silent", "said goodbye"])
def test_a_host_that_is_only_silent_may_still_run_its_guests(how, admin, cloud):
    server_id = booted(admin, cloud)
    beats(cloud, "host1", ago=3600)
    if how == "said goodbye":
        with target_cell(cloud.cells["cell1"]):
            Service.objects.filter(host="host1").update(last_seen_up=timezone.now(), ended_at=timezone.now())
    answer = evacuate(admin, server_id)
    assert answer.status_code == 409
    assert "nobody has confirmed that its guests are off" in message(answer)
    assert "openstack compute service set --down host1 nova-compute" in message(answer)
    assert states(cloud, server_id) == ("active", None)


def test_a_host_that_reports_after_it_was_said_to_be_off_is_not_off(admin, cloud):
    server_id = lost(admin, cloud)
    beats(cloud, "host1", ago=-1)
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


# -- the road


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
    cloud.hosts["host1"].driver.orders.fail("spawn", error=ImageUnusable)
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


@pytest.mark.parametrize("when", WHEN)
def test_a_host_killed_while_it_removes_its_old_guest_removes_it_in_its_next_life(when, admin, cloud):
    server_id = moved_out(admin, cloud)
    back(cloud)
    two_hosts.killed(cloud, until(cloud, "forget"), when)
    cloud.work()
    is_at(cloud, server_id, "host3")
    assert migration(admin, server_id)["status"] == "completed"


def test_a_destination_killed_in_the_middle_of_building_builds_again(admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    step = until(cloud, "build")
    cloud.hosts["host3"].driver.orders.fail("spawn", error=Killed)
    with pytest.raises(Killed):
        work(cloud, "host1")
    assert two_hosts.restart(cloud, step) == 1
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("undo", ["tear_down", "give_back"])
def test_a_build_that_fails_is_taken_back_and_the_server_can_be_evacuated_again(undo, when, admin, cloud):
    server_id = lost(admin, cloud)
    cloud.hosts["host3"].driver.orders.fail("spawn", error=ImageUnusable)
    evacuate(admin, server_id)
    two_hosts.killed(cloud, until(cloud, undo), when)
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host1", ("active", None))
    assert (claimed(cloud, server_id), homes(cloud, server_id), needed(cloud)) == ({"host1"}, ["host1"], set())
    assert cloud.row(server_id).fault["message"] == "spawn failed to order"
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


# -- what was going on when the host died


@pytest.mark.parametrize(
    ("asked", "version", "ends"),
    [
        ({"os-stop": None}, "2.94", "stopped"),
        ({"reboot": {"type": "HARD"}}, "2.94", "active"),
        ({"pause": None}, "2.94", "paused"),
        ({"reboot": {"type": "HARD"}}, "2.95", "active"),
    ],
)
def test_what_was_asked_of_the_dead_host_follows_the_server_once(asked, version, ends, admin, cloud):
    server_id = lost(admin, cloud)
    assert act(admin, server_id, asked).status_code == 202
    busy = states(cloud, server_id)[1]
    assert evacuate(admin, server_id, version=version).status_code == 200
    until(cloud, "build")
    assert states(cloud, server_id) == ("active", "rebuilding")
    step = two_hosts.claim(cloud, until(cloud, "build"))
    cloud.hosts["host3"].finish(step)
    assert states(cloud, server_id)[1] == busy  # and now that
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3", ends)
    with target_cell(cloud.cells["cell1"]):
        done = Step.objects.filter(server_id=server_id, host="host3", state="done").values_list("name", flat=True)
        assert len(done) == len(set(done)) == 2


def test_a_request_that_was_to_follow_waits_on_when_the_evacuation_fails(admin, cloud):
    server_id = lost(admin, cloud)
    act(admin, server_id, {"os-stop": None})
    cloud.hosts["host3"].driver.orders.fail("spawn", error=ImageUnusable)
    evacuate(admin, server_id)
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host1", ("active", "powering-off"))
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host1", "stopped")


def test_what_the_dead_host_had_begun_ends_with_a_fault(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"os-stop": None})
    step = two_hosts.claim(cloud, until(cloud, "power_off"))
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    stop = next(row for row in cloud.history(server_id) if row.action == "stop")
    assert (stop.message, stop.outcome) == ("Error", "host host1 is gone")
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    cloud.hosts["host1"].finish(step)  # should it live after all: it writes nothing
    assert states(cloud, server_id) == ("active", None)
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_snapshot_that_waited_for_the_dead_host_is_discarded(admin, cloud):
    """The disk it was to be of is lost."""
    server_id = lost(admin, cloud)
    assert act(admin, server_id, {"createImage": {"name": "snap"}}).status_code == 202
    evacuate(admin, server_id)
    work(cloud, "host1")
    assert not [image for image in admin.get("/image/v2/images").json()["images"] if image["name"] == "snap"]
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("at", ["power_off", "tear_down", "build"])
def test_a_rebuild_whose_host_died_does_not_end_its_evacuation(at, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"rebuild": {"imageRef": cloud.image.id}})
    two_hosts.claim(cloud, two_hosts.until(cloud, at))
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("at", ["check_source", "migrate"])
def test_a_live_migration_whose_source_died_is_taken_back_where_that_is_possible(at, admin, cloud):
    cloud.add_host("host5", "cell1", memory_mb=1024)
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    two_hosts.claim(cloud, two_hosts.until(cloud, at))
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    host = cloud.row(server_id).host
    assert host in ("host3", "host5")
    assert claimed(cloud, server_id) == {host}
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, host)


@pytest.mark.parametrize("at", ["check_source", "leave"])
def test_a_cold_migration_whose_source_died_does_not_power_the_old_guest_on_again(at, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    two_hosts.claim(cloud, two_hosts.until(cloud, at))
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert (cloud.row(server_id).host, claimed(cloud, server_id)) == ("host3", {"host3"})
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")
    effects = [done.effect for done in cloud.hosts["host1"].driver.effects(server_id)]
    assert Effect.POWERED_ON not in effects
    assert Effect.TAKEN_BACK not in effects


def test_what_goes_on_elsewhere_is_not_preempted(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    two_hosts.until(cloud, "expect")  # at its destination, which works
    gone_host(admin, cloud)
    answer = evacuate(admin, server_id)
    assert (answer.status_code, message(answer)) == (
        409, f"Cannot 'evacuate' instance {server_id} while it is in task_state migrating",
    )  # fmt: skip


# -- while the old host is away


def test_while_the_old_host_is_away_the_server_is_free(admin, cloud):
    server_id = moved_out(admin, cloud)
    for name in ("pause", "unpause", "soft reboot", "stop"):
        assert act(admin, server_id, stories.STORIES[name].body).status_code == 202
        work(cloud, "host1")
        assert states(cloud, server_id) == (stories.STORIES[name].end, None)
    two_hosts.drain(cloud, "host3")
    assert needed(cloud) == set()


def test_a_second_evacuation_while_the_first_host_is_away(admin, cloud):
    server_id = moved_out(admin, cloud)
    cloud.add_host("host5", "cell1")
    gone_host(admin, cloud, "host3")
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1", "host3")
    assert (cloud.row(server_id).host, claimed(cloud, server_id)) == ("host5", {"host5"})
    for host in ("host3", "host1"):
        back(cloud, host)
    cloud.work()
    is_at(cloud, server_id, "host5")


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
def test_a_destination_that_dies_meanwhile_is_left_for_another_one(when, admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    step = until(cloud, "build")
    if when != "before":
        step = two_hosts.claim(cloud, step)
        if when == "after the work":
            two_hosts.work(cloud, step)
    cloud.add_host("host5", "cell1")
    gone_host(admin, cloud, "host3")
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1", "host3")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host5", ("active", None))
    assert claimed(cloud, server_id) == {"host5"}
    for host in ("host3", "host1"):
        back(cloud, host)
    cloud.work()
    is_at(cloud, server_id, "host5")


def test_it_moves_back_to_its_old_host_once_that_has_cleaned_up(admin, cloud):
    server_id = moved_out(admin, cloud)
    assert act(admin, server_id, {"os-migrateLive": {"host": "host1", "block_migration": "auto"}}).status_code == 400
    back(cloud)
    answer = force(admin, "host1", down=False)
    assert answer.status_code == 400
    assert "still has to remove what it has of 1 servers" in message(answer)
    cloud.work()
    assert force(admin, "host1", down=False).status_code == 200
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host1")


def test_a_host_cannot_be_forced_up_while_a_server_is_being_evacuated(admin, cloud):
    server_id = lost(admin, cloud)
    evacuate(admin, server_id)
    assert force(admin, "host1", down=False).status_code == 400
    assert back(cloud) == 1  # should it start all the same: nothing of it runs twice
    assert states(cloud, server_id) == ("active", "rebuilding")
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_host_that_fails_to_clean_up_tries_for_ever(admin, cloud):
    server_id = moved_out(admin, cloud)
    cloud.hosts["host1"].driver.orders.fail("destroy", times=20, error=HypervisorUnavailable)
    back(cloud)
    for _ in range(22):
        stories.later(cloud)
        cloud.work()
    is_at(cloud, server_id, "host3")


def test_the_relay_does_not_send_for_a_host_that_is_away_all_the_time(admin, cloud):
    moved_out(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        owed = Step.objects.get(name="forget")
        Step.objects.filter(pk=owed.pk).update(sends=12, sent_at=timezone.now() - timedelta(seconds=300))
        assert recovery.relay() == 0
        Step.objects.filter(pk=owed.pk).update(sent_at=timezone.now() - timedelta(seconds=601))
        assert recovery.relay() == 1


def test_a_host_that_is_removed_owes_nothing(admin, cloud):
    server_id = moved_out(admin, cloud)
    (service,) = admin.get("/os-services?host=host1", version="2.96").json()["services"]
    assert admin.delete(f"/os-services/{service['id']}", version="2.96").status_code == 204
    assert not cloud.queued()
    assert cloud.history(server_id)[-1].outcome == "the host was removed"


# -- deletes


def test_a_delete_of_a_server_whose_host_is_gone_ends_at_once(admin, cloud):
    server_id = lost(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    assert admin.get(f"/servers/{server_id}").status_code == 404
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    assert back(cloud) == 1
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_delete_that_waits_for_its_host_ends_when_that_is_said_to_be_gone(when, admin, cloud):
    server_id = booted(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    step = two_hosts.waiting(cloud)
    if when == "inside":
        two_hosts.claim(cloud, step)
    with target_cell(cloud.cells["cell1"]):
        assert delete.end_waiting() == 0
    gone_host(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        assert delete.end_waiting() == 1
        assert delete.end_waiting() == 0
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    back(cloud)
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_delete_of_a_resized_server_whose_hosts_are_gone(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    assert cloud.row(server_id).host == "host3"
    gone_host(admin, cloud, "host1")
    gone_host(admin, cloud, "host3")
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    assert cloud.row(server_id).deleted
    assert claimed(cloud, server_id) == set()
    back(cloud, "host1")
    back(cloud, "host3")
    cloud.work()
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


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


def test_a_delete_after_an_evacuation_leaves_nothing_anywhere(admin, cloud):
    server_id = moved_out(admin, cloud)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    work(cloud, "host1")
    assert cloud.row(server_id).deleted
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


def test_a_request_the_old_host_takes_meanwhile_is_not_waited_for(admin, cloud):
    server_id = lost(admin, cloud)
    act(admin, server_id, {"os-stop": None})
    evacuate(admin, server_id)
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_the_old_host_writes_nothing_of_a_server_that_left(admin, cloud):
    server_id = moved_out(admin, cloud)
    driver = cloud.hosts["host1"].driver
    with target_cell(cloud.cells["cell1"]):
        driver.power_off_from_inside(server_id)
        assert power.sync("host1", driver, resume=True) == 0
        assert Instance.objects.get(uuid=server_id).power_state == PowerState.RUNNING
        assert not InstanceAction.objects.filter(server_id=server_id, action="stop").exists()
