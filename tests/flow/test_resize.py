"""Other flavors: there, and then confirmed or reverted, whoever dies meanwhile."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cells.context import target_cell
from cells.models import RequestSpec
from compute.models import Flavor, Quota, Service
from compute.operations import registry
from compute.virt.base import HypervisorUnavailable, MigrationAborted, PowerState, VirtError
from compute.virt.fake.effects import Effect
from tests.conftest import PROJECT
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message
from tests.flow.two_hosts import claimed, homes, needed, until

STEPS = [spec.name for spec in registry.named("Resize").steps if spec.name != "cleanup_source"]
UNDOS = ["revert_migration", "cancel_pre_migrate", "release_claim"]


@pytest.fixture
def large(cloud):
    """A larger flavor, and a second host in cell1; cell2 takes no servers."""
    cloud.add_host("host3", "cell1")
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    return Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=4, memory_mb=2048, disk_gb=2)


def asked(api, cloud, before=()):
    """A server on its way to the larger flavor, and where it was."""
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, before)
    source = cloud.row(server_id).host
    answer = act(api, server_id, {"resize": {"flavorRef": "2"}})
    assert (answer.status_code, answer.content) == (202, b"")
    return server_id, source


def other(source):
    return {"host1": "host3", "host3": "host1"}[source]


def counted(server_id):
    spec = RequestSpec.objects.get(pk=server_id)
    return spec.vcpus, spec.memory_mb


def is_as_before(cloud, server_id, source):
    """Nothing has changed, and nothing is left of the attempt."""
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (cloud.row(server_id).host, homes(cloud, server_id)) == (source, [source])
    assert (claimed(cloud, server_id), counted(server_id)) == ({source}, (1, 512))
    assert cloud.row(server_id).vcpus == 1
    assert needed(cloud) == set()


def is_large(cloud, server_id, host):
    """It has the new flavor, on one host only."""
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (cloud.row(server_id).host, homes(cloud, server_id)) == (host, [host])
    assert (claimed(cloud, server_id), counted(server_id)) == ({host}, (4, 2048))
    assert cloud.row(server_id).flavor_id == "2"
    assert cloud.used()[host] == (4, 2048)
    assert cloud.used()[other(host)] == (0, 0)


def confirm(api, server_id):
    answer = act(api, server_id, {"confirmResize": None})
    assert (answer.status_code, answer.content) == (204, b"")


def shown(api, server_id):
    return api.get(f"/servers/{server_id}").json()["server"]


def test_a_resized_server_waits_for_a_word_and_is_confirmed(api, admin, cloud, large):
    server_id, source = asked(api, cloud)
    assert shown(api, server_id)["status"] == "RESIZE"
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    assert shown(api, server_id)["status"] == "VERIFY_RESIZE"
    assert shown(api, server_id)["flavor"]["original_name"] == "m1.large"
    assert homes(cloud, server_id) == [other(source)]
    assert cloud.hosts[other(source)].driver.power_state(server_id) == PowerState.RUNNING
    assert (claimed(cloud, server_id), counted(server_id)) == ({"host1", "host3"}, (4, 2048))
    assert [event["event"] for event in stories.last_action(api, server_id)["events"]] == [
        "compute_check_source", "cold_migrate", "compute_prep_resize", "compute_resize_instance",
        "compute_finish_resize",
    ]  # fmt: skip
    confirm(api, server_id)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_large(cloud, server_id, other(source))
    assert [one.effect for one in cloud.hosts[source].driver.effects(server_id)] == [
        Effect.SPAWNED, Effect.OFF_BY_GUEST, Effect.MIGRATED_OUT,
    ]  # fmt: skip
    [migration] = admin.get("/os-migrations", version="2.80").json()["migrations"]
    assert (migration["status"], migration["migration_type"]) == ("confirmed", "resize")
    assert (migration["old_instance_type_id"], migration["new_instance_type_id"]) == (cloud.flavor.pk, large.pk)


@pytest.mark.parametrize("kept", [True, False], ids=["confirmed", "reverted"])
def test_a_resize_changes_the_disk_setting_when_it_says_so_and_a_revert_changes_it_back(kept, api, cloud, large):
    server_id = cloud.boot(api)
    assert act(api, server_id, {"resize": {"flavorRef": "2", "OS-DCF:diskConfig": "AUTO"}}).status_code == 202
    cloud.work()
    assert shown(api, server_id)["OS-DCF:diskConfig"] == "AUTO"
    assert act(api, server_id, {"confirmResize" if kept else "revertResize": None}).status_code in (202, 204)
    cloud.work()
    assert shown(api, server_id)["OS-DCF:diskConfig"] == ("AUTO" if kept else "MANUAL")


def test_its_disk_grows_and_a_revert_brings_the_small_one_back(api, cloud, large):
    server_id, source = asked(api, cloud)
    cloud.work()
    assert cloud.hosts[other(source)].driver._state.get(server_id).virtual_size == 2 << 30
    assert act(api, server_id, {"revertResize": None}).status_code == 202
    cloud.work()
    assert cloud.hosts[source].driver._state.get(server_id).virtual_size == 1 << 30


def test_the_copy_of_a_disk_has_more_time_than_the_guest_has_to_shut_down(api, cloud, large, settings):
    settings.SHUTDOWN_TIMEOUT = 0
    server_id, _ = asked(api, cloud)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)


def test_a_stopped_server_is_resized_and_stays_off(api, cloud, large):
    server_id, source = asked(api, cloud, ("stop",))
    cloud.work()
    confirm(api, server_id)
    cloud.work()
    assert stories.states(cloud, server_id) == ("stopped", None)
    is_large(cloud, server_id, other(source))


def test_a_resize_is_counted_and_claimed_once_whatever_follows(api, cloud, large):
    server_id, source = asked(api, cloud)
    cloud.work()
    assert act(api, server_id, {"revertResize": None}).status_code == 202
    cloud.work()
    is_as_before(cloud, server_id, source)
    assert act(api, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    cloud.work()
    confirm(api, server_id)
    cloud.work()
    is_large(cloud, server_id, other(source))


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_the_server_gets_its_flavor(name, when, api, cloud, large):
    server_id, source = asked(api, cloud)
    step = until(cloud, name)
    two_hosts.killed(cloud, step, when)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    confirm(api, server_id)
    cloud.work()
    is_large(cloud, server_id, other(source))


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("undo", ["cleanup_destination", *UNDOS])
def test_whoever_is_killed_while_it_is_taken_back_the_server_is_as_before(undo, when, api, cloud, large):
    server_id, source = asked(api, cloud)
    verb, host = ("finish_migration", other(source)) if undo == "cleanup_destination" else ("migrate_out", source)
    cloud.hosts[host].driver.faults.fail(verb)
    step = until(cloud, undo)
    two_hosts.killed(cloud, step, when)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_as_before(cloud, server_id, source)
    assert cloud.row(server_id).fault["message"] == f"{verb} failed as injected"


@pytest.mark.parametrize("verb", ["pre_migrate", "finish_migration"])
def test_a_destination_that_fails_leaves_the_server_as_it_was(verb, api, cloud, large):
    server_id, source = asked(api, cloud)
    cloud.hosts[other(source)].driver.faults.fail(verb)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_as_before(cloud, server_id, source)
    assert stories.last_action(api, server_id)["message"] == "Error"


def test_a_guest_is_not_turned_off_for_a_destination_that_cannot_be_reached(api, cloud, large):
    server_id, source = asked(api, cloud)
    cloud.hosts[source].driver.faults.fail("check_can_migrate", error=VirtError)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_as_before(cloud, server_id, source)
    assert [one.effect for one in cloud.hosts[source].driver.effects(server_id)] == [Effect.SPAWNED]


def test_a_destination_that_is_away_for_a_moment_costs_the_guest_nothing(api, cloud, large):
    server_id, source = asked(api, cloud)
    cloud.hosts[source].driver.faults.fail("check_can_migrate", error=HypervisorUnavailable)
    cloud.work()
    assert cloud.hosts[source].driver.power_state(server_id) == PowerState.RUNNING
    stories.later(cloud)
    cloud.work()
    confirm(api, server_id)
    cloud.work()
    is_large(cloud, server_id, other(source))


def test_no_room_anywhere_is_said_and_counts_nothing(api, cloud, large):
    server_id, source = asked(api, cloud)
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=other(source)).update(disabled=True)
    cloud.work()
    is_as_before(cloud, server_id, source)
    assert cloud.row(server_id).fault["message"].startswith("No valid host was found.")


def test_a_resize_asked_for_while_the_source_is_stopped_is_done_once_when_it_is_back(api, cloud, large):
    server_id = cloud.boot(api)
    source = cloud.row(server_id).host
    two_hosts.drain(cloud, source)
    assert act(api, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    step = two_hosts.waiting(cloud)
    assert not two_hosts.call_off(cloud, step)  # it waits
    two_hosts.drain(cloud, source, wanted=False)
    cloud.work()
    confirm(api, server_id)
    cloud.work()
    is_large(cloud, server_id, other(source))
    effects = [one.effect for one in cloud.hosts[other(source)].driver.effects(server_id)]
    assert effects == [Effect.MIGRATED_IN, Effect.POWERED_ON]


def test_hosts_are_needed_until_the_resize_waits_for_a_word(api, cloud, large):
    server_id, source = asked(api, cloud)
    needs = []
    for name in STEPS:
        until(cloud, name)
        needs.append(needed(cloud))
    assert needs == [set(), {source}, {"host1", "host3"}, {"host1", "host3"}, {"host1", "host3"}]
    cloud.work()
    assert needed(cloud) == set()
    confirm(api, server_id)
    cloud.work()


@pytest.mark.parametrize("name", STEPS)
def test_a_server_deleted_while_it_is_resized_is_gone_from_both_hosts(name, api, cloud, large):
    server_id, _source = asked(api, cloud)
    until(cloud, name)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    is_gone(cloud, server_id)


@pytest.mark.parametrize("name", STEPS)
def test_a_server_deleted_while_a_step_runs_is_gone_from_both_hosts(name, api, cloud, large):
    server_id, _source = asked(api, cloud)
    step = two_hosts.claim(cloud, until(cloud, name))
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    with suppress(MigrationAborted):  # it notices
        two_hosts.work(cloud, step)
    two_hosts.restart(cloud, step)
    for cell, queued in reversed(cloud.queued()):
        cloud._deliver(cell, queued)
    cloud.work()
    is_gone(cloud, server_id)


def test_a_resized_server_that_is_deleted_leaves_nothing_at_its_old_host(api, cloud, large):
    server_id, _source = asked(api, cloud)
    cloud.work()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    is_gone(cloud, server_id)


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
def test_an_old_host_killed_while_it_forgets_a_deleted_server_keeps_nothing(when, api, cloud, large):
    server_id, _source = asked(api, cloud)
    cloud.work()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    step = until(cloud, "cleanup_source")
    two_hosts.killed(cloud, step, when)
    cloud.work()
    is_gone(cloud, server_id)


def is_gone(cloud, server_id):
    """Nothing of it is anywhere, not even what a host keeps for a revert."""
    assert cloud.row(server_id).deleted
    stories.settled(cloud)
    assert claimed(cloud, server_id) == set()
    for host in cloud.hosts.values():
        assert host.driver._departed(server_id) == ""
        assert not list(host.driver._inbox.iterdir())


@pytest.mark.parametrize("name", STEPS)
def test_a_reset_state_in_the_middle_leaves_one_guest_and_one_claim(name, api, admin, cloud, large):
    server_id, source = asked(api, cloud)
    until(cloud, name)
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    cloud.work()
    is_as_before(cloud, server_id, source)


@pytest.mark.parametrize("name", STEPS)
def test_a_reset_state_after_a_host_died_leaves_one_guest_and_one_claim(name, api, admin, cloud, large):
    server_id, source = asked(api, cloud)
    step = two_hosts.claim(cloud, until(cloud, name))
    two_hosts.work(cloud, step)
    assert two_hosts.restart(cloud, step) == 1
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    cloud.work()
    is_as_before(cloud, server_id, source)


# -- refusals


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"flavorRef": "1"}, 400, "When resizing, instances must change flavor!"),
        ({"flavorRef": "nothing"}, 400, "Flavor nothing could not be found."),
        ({"flavorRef": "9"}, 400, "Resize to a smaller disk is not allowed: it has 1 GiB, the flavor 0."),
        ({"flavorRef": "2", "x": 1}, 400, "Additional properties are not allowed ('x' was unexpected)"),
        ({}, 400, "'flavorRef' is a required property"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(body, status, text, api, cloud, large):
    Flavor.objects.create(flavor_id="9", name="flat", vcpus=1, memory_mb=512, disk_gb=0)
    server_id = cloud.boot(api)
    answer = act(api, server_id, {"resize": body})
    assert (answer.status_code, message(answer)) == (status, text)
    assert stories.states(cloud, server_id) == ("active", None)


def test_a_quota_is_kept_at_the_request_and_again_when_it_is_carried_out(api, cloud, large):
    server_id = cloud.boot(api)
    source = cloud.row(server_id).host
    limit = Quota.objects.create(project_id=PROJECT, resource="cores", limit=3)
    answer = act(api, server_id, {"resize": {"flavorRef": "2"}})
    text = "Quota exceeded for cores: Requested 3, but already used 1 of 3 cores"
    assert (answer.status_code, message(answer)) == (403, text)
    Quota.objects.filter(pk=limit.pk).update(limit=4)
    assert act(api, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    Quota.objects.filter(pk=limit.pk).update(limit=3)
    cloud.work()
    is_as_before(cloud, server_id, source)
    assert cloud.row(server_id).fault["message"] == text


def test_members_resize_and_strangers_do_not(api, reader, stranger, cloud, large):
    server_id = cloud.boot(api)
    assert act(reader, server_id, {"resize": {"flavorRef": "2"}}).status_code == 403
    assert act(stranger, server_id, {"resize": {"flavorRef": "2"}}).status_code == 404
    stories.lead(api, cloud, server_id, ("pause",))
    answer = act(api, server_id, {"resize": {"flavorRef": "2"}})
    text = f"Cannot 'resize' instance {server_id} while it is in vm_state paused"
    assert (answer.status_code, message(answer)) == (409, text)


def test_what_came_and_cannot_stay_goes_also_from_a_host_that_did_not_let_go_at_once(api, cloud, large):
    server_id, source = asked(api, cloud)
    destination = cloud.hosts[other(source)].driver
    destination.faults.fail("finish_migration", error=VirtError)
    destination.faults.fail("destroy", error=VirtError)
    cloud.work()
    stories.later(cloud)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_as_before(cloud, server_id, source)
