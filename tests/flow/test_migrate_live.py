"""Moving a running server to another host, with either host or the conductor dying or draining meanwhile."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute import actions, draining
from compute.models import ComputeNode, Flavor, Service
from compute.virt.base import InsufficientResources, PowerState
from compute.virt.fake_effects import Effect
from tests.flow import stories, two_hosts
from tests.flow.stories import Killed, act, message
from tests.flow.two_hosts import LIVE, booted, claimed, homes, needed, until

STEPS = [spec.name for spec in actions.named("MigrateLive").steps]
UNDOS = ["stay", "unexpect", "give_back"]


def asked(admin, cloud):
    """A server on host1, asked to go."""
    server_id = booted(admin, cloud)
    answer = act(admin, server_id, LIVE)
    assert (answer.status_code, answer.content) == (202, b"")
    return server_id


def is_at(cloud, server_id, host):
    """One guest, on one host, as the record says, with the room of one server."""
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (cloud.row(server_id).host, homes(cloud, server_id)) == (host, [host])
    assert claimed(cloud, server_id) == {host}
    assert needed(cloud) == set()


def test_a_live_migrated_server_runs_on_the_other_host_and_was_not_booted_again(admin, cloud):
    server_id = asked(admin, cloud)
    assert stories.states(cloud, server_id) == ("active", "migrating")
    assert admin.get(f"/servers/{server_id}").json()["server"]["status"] == "MIGRATING"

    cloud.work()

    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host3")
    assert [done.effect for done in cloud.hosts["host1"].driver.effects(server_id)] == [
        Effect.SPAWNED, Effect.MIGRATED_OUT,
    ]  # fmt: skip
    assert [done.effect for done in cloud.hosts["host3"].driver.effects(server_id)] == [Effect.MIGRATED_IN]
    assert "boots=1" in cloud.hosts["host3"].driver.console_output(server_id)
    history = stories.last_action(admin, server_id)
    assert (history["action"], history["message"]) == ("live-migration", None)
    assert [(event["host"], event["event"], event["result"]) for event in history["events"]] == [
        ("nova-conductor@test", "conductor_live_migrate_instance", "Success"),
        ("host3", "compute_check_can_live_migrate_destination", "Success"),
        ("host1", "compute_check_can_live_migrate_source", "Success"),
        ("host3", "compute_pre_live_migration", "Success"),
        ("host1", "compute_live_migration", "Success"),
        ("host3", "compute_post_live_migration_at_destination", "Success"),
        ("host1", "compute_post_live_migration", "Success"),
    ]  # fmt: skip


def test_there_and_back_again(admin, cloud):
    server_id = asked(admin, cloud)
    cloud.work()
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host1")


def test_a_server_that_came_back_survives_the_cleaning_of_its_old_host(admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, "clean_up_source")
    assert stories.states(cloud, server_id) == ("active", None)  # free at once, whatever its old host does
    assert act(admin, server_id, LIVE).status_code == 202
    late = until(cloud, "clean_up_source")
    for cell, step in reversed(cloud.queued()):  # the new migration goes first
        if step.pk != late.pk:
            cloud._deliver(cell, step)
    cloud.work()
    is_at(cloud, server_id, "host1")


def test_a_paused_server_arrives_paused(admin, cloud):
    server_id = booted(admin, cloud)
    stories.lead(admin, cloud, server_id, ("pause",))
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    assert stories.states(cloud, server_id) == ("paused", None)
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_the_server_arrives(name, when, admin, cloud):
    server_id = asked(admin, cloud)
    step = until(cloud, name)
    if when != "before":
        step = two_hosts.claim(cloud, step)
        if when == "after the work":
            two_hosts.work(cloud, step)
        assert not cloud.queued()
    assert two_hosts.restart(cloud, step) == (when != "before")
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host3")


def test_a_source_killed_in_the_middle_of_handing_over_does_it_again(admin, cloud):
    server_id = asked(admin, cloud)
    step = until(cloud, "migrate")
    cloud.hosts["host1"].driver.orders.fail("hand_over", error=Killed)
    with pytest.raises(Killed):
        cloud.work()
    assert homes(cloud, server_id) == ["host1"]
    assert two_hosts.restart(cloud, step) == 1
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("undo", UNDOS)
def test_whoever_is_killed_while_it_is_taken_back_the_server_stays(undo, when, admin, cloud):
    server_id = asked(admin, cloud)
    cloud.hosts["host1"].driver.orders.fail("hand_over")
    step = until(cloud, undo)
    two_hosts.killed(cloud, step, when)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")
    assert stories.last_action(admin, server_id)["message"] == "Error"
    assert cloud.row(server_id).fault["message"] == "hand_over failed to order"


@pytest.mark.parametrize(("verb", "host"), [("expect", "host3"), ("hand_over", "host1")])
def test_a_migration_that_fails_leaves_the_server_where_it_runs(verb, host, admin, cloud):
    server_id = asked(admin, cloud)
    cloud.hosts[host].driver.orders.fail(verb, error=InsufficientResources)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")
    assert cloud.row(server_id).fault["message"] == f"{verb} failed to order"

    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_destination_that_cannot_settle_the_guest_says_so_and_keeps_one_claim(admin, cloud):
    server_id = asked(admin, cloud)
    cloud.hosts["host3"].driver.orders.fail("settle")
    cloud.work()
    shown = admin.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["fault"]["message"]) == ("ERROR", "settle failed to order")
    assert (cloud.row(server_id).host, claimed(cloud, server_id), needed(cloud)) == ("host3", {"host3"}, set())
    # found by the simulation: what the source had handed over stayed there for good
    assert list(cloud.hosts["host1"].driver._state.run("SELECT uuid FROM departed")) == []
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    stories.settled(cloud)


def test_a_source_that_dies_eight_times_with_the_guest_on_its_way_has_it_back(admin, cloud):
    server_id = asked(admin, cloud)
    step = two_hosts.claim(cloud, until(cloud, "migrate"))
    two_hosts.work(cloud, step)
    assert homes(cloud, server_id) == []  # a parcel at host3
    with target_cell(cloud.cells["cell1"]):
        type(step).objects.filter(pk=step.pk).update(attempts=99)
    two_hosts.restart(cloud, step)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")


@pytest.mark.parametrize("name", STEPS)
def test_a_server_deleted_while_it_moves_is_gone_from_both_hosts(name, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, name)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert cloud.row(server_id).deleted
    assert homes(cloud, server_id) == []
    assert claimed(cloud, server_id) == set()
    stories.settled(cloud)


@pytest.mark.parametrize("name", STEPS)
def test_a_server_deleted_while_a_step_runs_is_gone_from_both_hosts(name, admin, cloud):
    server_id = asked(admin, cloud)
    step = two_hosts.claim(cloud, until(cloud, name))
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert not cloud.row(server_id).deleted  # what runs ends first
    two_hosts.restart(cloud, step)
    for cell, queued in reversed(cloud.queued()):  # the delete first, if it may
        cloud._deliver(cell, queued)
    cloud.work()
    assert cloud.row(server_id).deleted
    assert homes(cloud, server_id) == []
    assert claimed(cloud, server_id) == set()
    stories.settled(cloud)


@pytest.mark.parametrize("name", STEPS)
def test_a_reset_state_in_the_middle_leaves_one_guest_and_one_claim(name, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, name)
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host3" if name in STEPS[-2:] else "host1")


@pytest.mark.parametrize("name", STEPS)
def test_a_reset_state_after_a_host_died_leaves_one_guest_and_one_claim(name, admin, cloud):
    server_id = asked(admin, cloud)
    step = two_hosts.claim(cloud, until(cloud, name))
    two_hosts.work(cloud, step)
    assert two_hosts.restart(cloud, step) == 1
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host3" if name in STEPS[-2:] else "host1")


def test_a_stop_asked_for_at_the_last_moment_follows_the_server(admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, "arrive")
    act(admin, server_id, {"os-resetState": {"state": "active"}})
    assert act(admin, server_id, {"os-stop": None}).status_code == 202
    cloud.work()
    assert stories.states(cloud, server_id) == ("stopped", None)
    is_at(cloud, server_id, "host3")


# -- drains


def test_hosts_are_needed_while_something_of_the_migration_is_still_to_be_done_there(admin, cloud):
    server_id = asked(admin, cloud)
    needs = {}
    for name in STEPS:
        until(cloud, name)
        needs[name] = needed(cloud)
    cloud.work()
    both = {"host1", "host3"}
    assert needs == {
        "pick": set(), "check_destination": set(), "check_source": set(),
        "expect": both, "migrate": both, "arrive": both, "clean_up_source": {"host1"},
    }  # fmt: skip
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize(("name", "host"), [("check_destination", "host3"), ("check_source", "host1")])
def test_a_migration_nobody_has_begun_is_cancelled_by_a_drain_and_the_server_says_why(name, host, admin, cloud):
    server_id = asked(admin, cloud)
    step = until(cloud, name)
    assert two_hosts.call_off(cloud, step)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")
    assert cloud.row(server_id).fault["message"] == f"host {host} drains"
    assert two_hosts.action_of(cloud, server_id).outcome == f"host {host} drains"


@pytest.mark.parametrize("host", ["host1", "host3"])
def test_a_migration_that_has_begun_ends_while_its_hosts_drain(host, admin, cloud):
    server_id = asked(admin, cloud)
    step = until(cloud, "expect")
    two_hosts.drain(cloud, host)
    assert not two_hosts.call_off(cloud, step)
    with target_cell(cloud.cells["cell1"]):
        [operation] = draining.operations(Service.objects.get(host=host))
        assert (operation.server_id, operation.step) == (server_id, "expect")
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("host", ["host1", "host3"])
def test_a_host_that_drains_before_the_checks_ends_it_with_nothing_done(host, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, "check_destination")
    two_hosts.drain(cloud, host)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")
    assert cloud.row(server_id).fault["message"] == f"host {host} drains"


def test_no_server_is_sent_to_a_draining_host(admin, cloud):
    server_id = booted(admin, cloud)
    two_hosts.drain(cloud, "host3")
    named = act(admin, server_id, {"os-migrateLive": {"host": "host3", "block_migration": "auto"}})
    assert (named.status_code, message(named)) == (
        409, "Host host3 is draining: no server moves from or to it until it takes work again.",
    )  # fmt: skip
    early = act(admin, server_id, {"os-migrateLive": {"host": None, "block_migration": "auto"}}, version="2.33")
    text = "No valid host was found. No host passed the filter for: not draining."
    assert (early.status_code, message(early)) == (400, text)
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    assert cloud.row(server_id).fault["message"] == text
    is_at(cloud, server_id, "host1")


# -- refusals


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("host1", "Unable to migrate instance ({id}) to current host (host1)."),
        ("nowhere", "Compute host nowhere could not be found."),
        ("host2", "Compute host host2 could not be found."),
        ("down", "Compute service of down is unavailable at this time."),
    ],
)
def test_a_wrong_destination_is_refused_at_once(host, text, admin, cloud):
    server_id = booted(admin, cloud)
    cloud.add_host("down", "cell1")
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="down").update(forced_down=True)
    answer = act(admin, server_id, {"os-migrateLive": {"host": host, "block_migration": "auto"}})
    assert (answer.status_code, message(answer)) == (400, text.format(id=server_id))
    assert stories.states(cloud, server_id) == ("active", None)


def test_a_host_of_ones_own_choice_is_the_one(admin, cloud):
    server_id = booted(admin, cloud)
    cloud.add_host("host4", "cell1")
    assert act(admin, server_id, {"os-migrateLive": {"host": "host4", "block_migration": False}}).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host4")


@pytest.mark.parametrize(
    ("version", "body", "status"),
    [
        ("2.24", {"host": None, "block_migration": False, "disk_over_commit": False}, 202),
        ("2.24", {"host": None, "block_migration": "auto", "disk_over_commit": False}, 400),
        ("2.24", {"host": None, "block_migration": False}, 400),
        ("2.25", {"host": None, "block_migration": "auto", "disk_over_commit": False}, 400),
        ("2.29", {"host": None, "block_migration": "auto", "force": True}, 400),
        ("2.30", {"host": "host3", "block_migration": "auto", "force": True}, 202),
        ("2.68", {"host": "host3", "block_migration": "auto", "force": True}, 400),
        ("2.96", {"host": "host3"}, 400),
        ("2.96", {"host": "host3", "block_migration": "True"}, 202),
    ],
)
def test_what_may_be_said_depends_on_the_microversion(version, body, status, admin, cloud):
    server_id = booted(admin, cloud)
    assert act(admin, server_id, {"os-migrateLive": body}, version=version).status_code == status
    cloud.work()
    is_at(cloud, server_id, "host3" if status == 202 else "host1")


def test_a_forced_host_may_be_out_of_service(admin, cloud):
    server_id = booted(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host3").update(disabled=True)
    body = {"host": "host3", "block_migration": "auto"}
    assert act(admin, server_id, {"os-migrateLive": body}).status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host1")
    assert act(admin, server_id, {"os-migrateLive": {**body, "force": True}}, version="2.67").status_code == 202
    cloud.work()
    is_at(cloud, server_id, "host3")


@pytest.mark.parametrize("body", [LIVE, {"migrate": None}, {"resize": {"flavorRef": "2"}}])
def test_a_host_that_cannot_hand_guests_over_says_so(body, admin, cloud):
    Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=4, memory_mb=2048, disk_gb=2)
    server_id = booted(admin, cloud)
    with target_cell(cloud.cells["cell1"]):
        ComputeNode.objects.filter(host="host1").update(hypervisor_type="ironic")
    answer = act(admin, server_id, body)
    why = "servers cannot be moved from host host1: not offered yet with hypervisor type ironic."
    assert (answer.status_code, message(answer)) == (400, f"Migration pre-check error: {why}")
    assert stories.states(cloud, server_id) == ("active", None)


def test_only_admins_move_servers(api, admin, stranger, cloud):
    cloud.add_host("host3", "cell1")
    server_id = cloud.boot(api)
    answer = act(api, server_id, LIVE)
    assert answer.status_code == 403
    assert "os_compute_api:os-migrate-server:migrate_live" in message(answer)
    assert act(stranger, server_id, LIVE).status_code == 404


def test_a_stopped_server_cannot_be_moved_live(admin, cloud):
    server_id = booted(admin, cloud)
    stories.lead(admin, cloud, server_id, ("stop",))
    answer = act(admin, server_id, LIVE)
    text = f"Cannot 'os-migrateLive' instance {server_id} while it is in vm_state stopped"
    assert (answer.status_code, message(answer)) == (409, text)


def test_a_second_migration_of_a_moving_server_is_a_conflict(admin, cloud):
    server_id = asked(admin, cloud)
    answer = act(admin, server_id, LIVE)
    text = f"Cannot 'os-migrateLive' instance {server_id} while it is in task_state migrating"
    assert (answer.status_code, message(answer)) == (409, text)
    cloud.work()
    is_at(cloud, server_id, "host3")


def test_a_guest_that_powers_itself_off_on_the_way_is_off_where_it_was(admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, "migrate")
    cloud.hosts["host1"].driver.power_off_from_inside(server_id)
    cloud.work()
    assert cloud.hosts["host1"].driver.guests()[server_id] == PowerState.SHUTDOWN
    assert homes(cloud, server_id) == ["host1"]
    assert claimed(cloud, server_id) == {"host1"}
