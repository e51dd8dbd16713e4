"""What was going on at a host that is lost: what follows the server, what is undone, what is left alone."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.models import Allocation, ComputeNode, Flavor, Step
from compute.virt.base import ImageUnusable
from compute.virt.fake_effects import Effect
from tests.flow import stories, two_hosts
from tests.flow.lost_hosts import back, evacuate, gone_host, is_at, lost, moved_out, until, work
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import LIVE, booted, claimed, homes


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


def test_a_request_that_was_to_follow_waits_on_when_a_second_evacuation_fails_too(admin, cloud):
    """Found by the simulation: the server was left rebuilding, and nothing led out of it."""
    server_id = lost(admin, cloud)
    act(admin, server_id, {"os-stop": None})
    evacuate(admin, server_id)
    until(cloud, "build")
    gone_host(admin, cloud, "host3")
    assert evacuate(admin, server_id).status_code == 200  # no host is left
    work(cloud, "host1", "host3")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host1", ("active", "powering-off"))
    for host in ("host3", "host1"):
        back(cloud, host)
    cloud.work()
    is_at(cloud, server_id, "host1", "stopped")


def test_a_request_the_old_host_takes_meanwhile_is_not_waited_for(admin, cloud):
    server_id = lost(admin, cloud)
    act(admin, server_id, {"os-stop": None})
    evacuate(admin, server_id)
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")


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


def test_an_evacuation_to_where_a_resize_was_going_holds_the_room_of_the_size_it_has(admin, cloud):
    """Found by the simulation: the host kept the room of the larger flavor for good, for the claim was the resize's."""
    server_id = booted(admin, cloud)
    small = cloud.row(server_id).memory_mb
    Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=2, memory_mb=2 * small, disk_gb=1)
    assert act(admin, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    two_hosts.claim(cloud, two_hosts.until(cloud, "leave"))
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    until(cloud, "build", "host1", "host3")  # its room is claimed before the resize is undone at host3
    work(cloud, "host1")
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host3")
    with target_cell(cloud.cells["cell1"]):
        assert [(row.node.host, row.memory_mb) for row in Allocation.objects.filter(server_id=server_id)] == [
            ("host3", small)
        ]
        assert ComputeNode.objects.get(host="host3").memory_mb_used == small


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


@pytest.mark.parametrize("returns", ["after", "meanwhile"])
def test_a_guest_handed_over_to_a_host_that_died_before_it_could_say_so_is_ended_there(returns, admin, cloud):
    """Found by the simulation: its room there was kept for good, and the guest ran twice once that host was back."""
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    two_hosts.work(cloud, two_hosts.claim(cloud, two_hosts.until(cloud, "arrive")))  # the record still says host1
    cloud.add_host("host5", "cell1")
    gone_host(admin, cloud, "host3")
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    if returns == "meanwhile":
        until(cloud, "build", "host1", "host3")
        assert back(cloud, "host3") == 1, "it turns off what is about to live elsewhere"
        work(cloud, "host1")
    else:
        work(cloud, "host1", "host3")
        back(cloud, "host3")
    assert (cloud.row(server_id).host, claimed(cloud, server_id)) == ("host5", {"host5"})
    back(cloud)
    cloud.work()
    is_at(cloud, server_id, "host5")


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


@pytest.mark.parametrize("returns", ["after", "meanwhile"])
def test_a_guest_handed_over_between_two_hosts_that_died_comes_back_when_no_other_host_takes_it(returns, admin, cloud):
    """Found by the simulation (seed 9403): what the source had handed over stayed aside, and the server was lost."""
    server_id = booted(admin, cloud)
    assert act(admin, server_id, {"migrate": None}).status_code == 202
    two_hosts.until(cloud, "finish")
    gone_host(admin, cloud, "host3")
    gone_host(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    if returns == "after":
        work(cloud, "host1", "host3")  # no valid host
    for host in ("host1", "host3"):
        back(cloud, host)
    stories.later(cloud)
    cloud.work()
    stories.later(cloud)
    cloud.work()
    assert cloud.row(server_id).host == "host1"
    assert homes(cloud, server_id) == ["host1"]
    assert claimed(cloud, server_id) == {"host1"}
    assert not cloud.hosts["host1"].driver._departed(server_id)


def test_what_goes_on_elsewhere_is_not_preempted(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    two_hosts.until(cloud, "expect")  # at its destination, which works
    gone_host(admin, cloud)
    answer = evacuate(admin, server_id)
    assert (answer.status_code, message(answer)) == (
        409, f"Cannot 'evacuate' instance {server_id} while it is in task_state migrating",
    )  # fmt: skip


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
