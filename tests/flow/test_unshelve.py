"""Unshelve: on again where it is, or built anew where there is room; when there is none, nothing has happened."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from cloud.images.models import Image
from compute.models import Service
from compute.placement import quota
from compute.virt.base import InsufficientResources, VirtError
from tests.conftest import PROJECT
from tests.flow import one_host, stories, two_hosts
from tests.flow.one_host import MOMENTS, booted, done, power
from tests.flow.stories import act, message
from tests.flow.test_shelve import SHELVE, images, is_kept, is_offloaded

UNSHELVE = {"unshelve": None}
STEPS = ["pick", "build", "delete_image"]


@pytest.fixture
def offloaded(api, cloud) -> str:
    """A server on the shelf."""
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    return server_id


@pytest.fixture
def kept(api, cloud, settings) -> str:
    """A server that is shelved, on its host."""
    settings.SHELVED_OFFLOAD_TIME = -1
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    return server_id


def runs(cloud, server_id: str) -> None:
    """It is active in one place, and its image is gone."""
    assert stories.states(cloud, server_id) == ("active", None)
    row = cloud.row(server_id)
    assert two_hosts.homes(cloud, server_id) == [row.host]
    assert two_hosts.claimed(cloud, server_id) == {row.host}
    assert power(cloud, server_id) == "RUNNING"
    assert (row.power_state, row.shelved_image_id, row.shelved_at, row.image_id) == (1, "", None, cloud.image.id)
    assert not images()
    stories.settled(cloud)


def only(cloud, host: str) -> None:
    """No other host takes servers."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.exclude(host=host).update(disabled=True)


def test_one_without_a_host_is_built_anew_from_its_own_disk(api, admin, cloud, offloaded):
    [image] = images()
    before = cloud.row(offloaded).launched_at
    assert act(api, offloaded, UNSHELVE).status_code == 202
    assert stories.states(cloud, offloaded) == ("shelved_offloaded", "unshelving")
    cloud.work()
    runs(cloud, offloaded)
    assert cloud.row(offloaded).launched_at > before
    said = cloud.host_of(offloaded).driver.console_output(offloaded)
    assert f"image={image.pk}" in said
    names = [event["event"] for event in stories.last_action(admin, offloaded)["events"]]
    assert {"schedule_instances", "compute_unshelve_instance"} <= set(names)
    assert quota.usage(PROJECT).instances == 1


def test_one_that_has_its_host_is_powered_on_there(api, admin, cloud, kept):
    host = cloud.row(kept).host
    done(api, cloud, kept, UNSHELVE)
    runs(cloud, kept)
    assert cloud.row(kept).host == host
    names = {event["event"] for event in stories.last_action(admin, kept)["events"]}
    assert "compute_start_instance" in names


@pytest.mark.parametrize("name", ["host1", "host3"])
def test_it_comes_to_the_host_that_has_room(name, api, cloud, offloaded):
    only(cloud, name)
    done(api, cloud, offloaded, UNSHELVE)
    runs(cloud, offloaded)
    assert cloud.row(offloaded).host == name


def test_afterwards_it_is_a_server_like_any_other(api, admin, cloud, offloaded):
    done(api, cloud, offloaded, UNSHELVE)
    for body in ({"os-stop": None}, {"os-start": None}, {"reboot": {"type": "HARD"}}, two_hosts.LIVE,
                 {"migrate": None}, {"confirmResize": None}, SHELVE, UNSHELVE):  # fmt: skip
        answer = act(admin, offloaded, body)
        assert answer.status_code in (202, 204), (body, answer.content)
        cloud.work()
        assert cloud.history(offloaded)[-1].message is None, body
    runs(cloud, offloaded)


def test_when_no_host_takes_it_it_is_on_the_shelf_as_before(api, cloud, offloaded):
    only(cloud, "")
    done(api, cloud, offloaded, UNSHELVE)
    is_offloaded(cloud, offloaded)
    last = cloud.history(offloaded)[-1]
    assert last.message == "Error"
    assert "No valid host was found." in last.outcome
    with target_cell(cloud.cells["cell1"]):
        Service.objects.update(disabled=False)
    done(api, cloud, offloaded, UNSHELVE)
    runs(cloud, offloaded)


@pytest.mark.parametrize("error", [VirtError, InsufficientResources])
def test_a_host_that_cannot_build_it_keeps_nothing_of_it(error, api, cloud, offloaded):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", error=error)
    done(api, cloud, offloaded, UNSHELVE)
    is_offloaded(cloud, offloaded)
    for host in cloud.hosts.values():
        host.driver.faults.clear()
    done(api, cloud, offloaded, UNSHELVE)
    runs(cloud, offloaded)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_it_runs_in_the_end(name, when, api, cloud, offloaded):
    act(api, offloaded, UNSHELVE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    runs(cloud, offloaded)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", ["power_on", "delete_image"])
def test_whoever_is_killed_one_with_a_host_runs_in_the_end(name, when, api, cloud, kept):
    act(api, kept, UNSHELVE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    runs(cloud, kept)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", ["cleanup_destination", "release_claim"])
def test_whoever_is_killed_while_it_is_made_good_it_is_on_the_shelf(name, when, api, cloud, offloaded):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", error=VirtError)
    act(api, offloaded, UNSHELVE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_offloaded(cloud, offloaded)


def test_one_that_cannot_be_powered_on_is_shelved_as_before(api, cloud, kept):
    cloud.host_of(kept).driver.faults.fail("power_on", error=VirtError)
    done(api, cloud, kept, UNSHELVE)
    is_kept(cloud, kept)
    assert cloud.history(kept)[-1].message == "Error"


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_each_step_leaves_nothing(name, when, api, cloud, offloaded):
    """It has no host until it is built, so it is gone at once; what is just being built goes after it."""
    act(api, offloaded, UNSHELVE)
    one_host.preempted(api, cloud, offloaded, two_hosts.until(cloud, name), when)
    assert not images()
    assert set(cloud.used().values()) == {(0, 0)}


def test_a_delete_while_its_guest_is_being_built_leaves_nothing(api, cloud, offloaded):
    """Nobody is killed: the step ends after its server is gone."""
    act(api, offloaded, UNSHELVE)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, "build"))
    assert api.delete(f"/servers/{offloaded}").status_code == 204
    assert cloud.row(offloaded).deleted
    cloud.hosts[step.host].finish(step)
    cloud.work()
    one_host.is_deleted(cloud, offloaded)
    assert not images()


def test_a_delete_while_its_host_is_picked_leaves_nothing(api, cloud, offloaded):
    act(api, offloaded, UNSHELVE)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, "pick"))
    assert api.delete(f"/servers/{offloaded}").status_code == 204
    two_hosts.work(cloud, step)
    assert two_hosts.claimed(cloud, offloaded)
    two_hosts.restart(cloud, step)
    cloud.work()
    one_host.is_deleted(cloud, offloaded)
    assert set(cloud.used().values()) == {(0, 0)}


@pytest.mark.parametrize("when", MOMENTS)
def test_a_delete_of_one_with_a_host_leaves_nothing(when, api, cloud, kept):
    act(api, kept, UNSHELVE)
    one_host.preempted(api, cloud, kept, two_hosts.until(cloud, "power_on"), when)
    assert not images()


def test_a_reset_state_while_it_is_built_leaves_no_guest_nobody_knows_of(api, admin, cloud, offloaded):
    act(api, offloaded, UNSHELVE)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, "build"))
    act(admin, offloaded, {"os-resetState": {"state": "error"}})
    cloud.hosts[step.host].finish(step)
    cloud.work()
    assert stories.states(cloud, offloaded) == ("error", None)
    assert not two_hosts.homes(cloud, offloaded)
    assert not two_hosts.claimed(cloud, offloaded)
    assert len(images()) == 1
    api.delete(f"/servers/{offloaded}")
    cloud.work()
    assert not images()


def test_while_it_goes_on_every_other_action_is_a_conflict(api, cloud, offloaded):
    act(api, offloaded, UNSHELVE)
    one_host.is_busy(api, offloaded, UNSHELVE, "unshelving")
    cloud.work()
    runs(cloud, offloaded)


def test_what_is_not_shelved_cannot_be_unshelved(api, cloud):
    server_id = booted(api, cloud)
    answer = act(api, server_id, UNSHELVE)
    text = f"Cannot 'unshelve' instance {server_id} while it is in vm_state active"
    assert (answer.status_code, message(answer)) == (409, text)


def test_one_whose_image_somebody_deleted_is_a_conflict_that_says_so(api, cloud, offloaded):
    Image.objects.filter(name="a-shelved").update(status="deleted")
    answer = act(api, offloaded, UNSHELVE)
    assert (answer.status_code, "could not be found" in message(answer)) == (409, True)
    assert stories.states(cloud, offloaded) == ("shelved_offloaded", None)


def test_those_who_may_not_are_refused(api, stranger, reader, cloud, offloaded):
    assert act(stranger, offloaded, UNSHELVE).status_code == 404
    assert act(reader, offloaded, UNSHELVE).status_code == 403
    act(api, offloaded, {"lock": None})
    assert act(api, offloaded, UNSHELVE).status_code == 409
