"""Shelve: the disk becomes an image, the host is free, and whatever fails the server is as it was."""

from __future__ import annotations

import pytest
from django.conf import settings as django_settings

from cells.models import RequestSpec
from cloud.images.models import Image
from compute.periodic import abandoned_snapshots
from compute.placement import quota
from compute.virt.base import HypervisorUnavailable, VirtError
from tests.conftest import PROJECT
from tests.flow import one_host, stories, two_hosts
from tests.flow.one_host import MOMENTS, WAYS, booted, done, power
from tests.flow.stories import act, message

SHELVE = {"shelve": None}
STEPS = ["create_image_record", "power_off", "snapshot", "offload"]
UNDOS = ["power_on_again", "delete_image"]


@pytest.fixture
def keeps(settings) -> None:
    """Shelved servers stay on their hosts."""
    settings.SHELVED_OFFLOAD_TIME = -1


def images() -> list[Image]:
    """Those of shelved servers."""
    return list(Image.objects.filter(name__endswith="-shelved").exclude(status="deleted"))


def is_offloaded(cloud, server_id: str) -> None:
    """No host has anything of it; its image is complete."""
    row = cloud.row(server_id)
    assert (row.vm_state, row.task_state, row.power_state) == ("shelved_offloaded", None, 0)
    assert (row.host, row.node) == ("", "")
    assert not two_hosts.homes(cloud, server_id)
    assert not two_hosts.claimed(cloud, server_id)
    assert [(image.status, image.pk) for image in images()] == [("active", row.shelved_image_id)]
    assert row.shelved_at is not None
    stories.settled(cloud)


def is_kept(cloud, server_id: str) -> None:
    """Off, on its host, and its image is complete."""
    row = cloud.row(server_id)
    assert (row.vm_state, row.task_state, row.power_state) == ("shelved", None, 4)
    assert power(cloud, server_id) == "SHUTDOWN"
    assert two_hosts.claimed(cloud, server_id) == {row.host}
    assert [(image.status, image.pk) for image in images()] == [("active", row.shelved_image_id)]
    stories.settled(cloud)


def is_as_before(cloud, server_id: str, was: str = "active") -> None:
    """On its host in its state, and no image."""
    assert stories.states(cloud, server_id) == (was, None)
    assert power(cloud, server_id) == stories.LIVE[was].name
    row = cloud.row(server_id)
    assert (row.shelved_image_id, row.shelved_at) == ("", None)
    assert not images()
    stories.settled(cloud)


@pytest.mark.parametrize("was", WAYS)
def test_a_shelved_server_is_offloaded_at_once(was, api, admin, cloud):
    server_id = booted(api, cloud, was)
    assert act(api, server_id, SHELVE).status_code == 202
    assert stories.states(cloud, server_id) == (was, "shelving")
    cloud.work()
    is_offloaded(cloud, server_id)
    done = stories.last_action(admin, server_id)
    names = {event["event"] for event in done["events"]}
    assert names >= {"compute_shelve_instance", "compute_shelve_offload_instance"}
    assert done["message"] is None


@pytest.mark.usefixtures("keeps")
@pytest.mark.parametrize("was", WAYS)
def test_where_the_operator_wants_that_it_stays_on_its_host(was, api, cloud):
    server_id = booted(api, cloud, was)
    done(api, cloud, server_id, SHELVE)
    is_kept(cloud, server_id)


def test_the_api_shows_a_server_without_a_host(api, admin, cloud):
    server_id = booted(api, cloud)
    zone = api.get(f"/servers/{server_id}").json()["server"]["OS-EXT-AZ:availability_zone"]
    done(api, cloud, server_id, SHELVE)
    for shown in (admin.get(f"/servers/{server_id}").json()["server"],
                  admin.get("/servers/detail?all_tenants=1").json()["servers"][0]):  # fmt: skip
        assert (shown["status"], shown["hostId"]) == ("SHELVED_OFFLOADED", "")
        assert shown["OS-EXT-SRV-ATTR:host"] is None
        assert shown["OS-EXT-SRV-ATTR:hypervisor_hostname"] is None
        assert (shown["OS-EXT-STS:power_state"], shown["OS-EXT-AZ:availability_zone"]) == (0, zone)
        assert shown["host_status"] == ""
    found = api.get("/servers/detail?status=SHELVED_OFFLOADED").json()["servers"]
    assert [one["id"] for one in found] == [server_id]
    hypervisors = admin.get("/os-hypervisors/detail?with_servers=1").json()["hypervisors"]
    assert not [one for one in hypervisors if one.get("servers")]


def test_its_image_is_the_projects_whoever_shelves_it(api, admin, cloud):
    server_id = booted(api, cloud)
    done(admin, cloud, server_id, SHELVE)
    [image] = images()
    assert (image.owner, image.name, image.visibility) == (PROJECT, "a-shelved", "private")
    marks = {"image_type": "snapshot", "instance_uuid": server_id, "base_image_ref": cloud.image.id}
    assert marks.items() <= image.properties.items()


def test_its_project_counts_it_as_before_and_its_host_does_not(api, cloud):
    server_id = booted(api, cloud)
    before = quota.usage(PROJECT)
    done(api, cloud, server_id, SHELVE)
    assert quota.usage(PROJECT) == before
    assert set(cloud.used().values()) == {(0, 0)}
    assert RequestSpec.objects.get(pk=server_id).memory_mb == 512


def test_the_guest_gets_its_grace_first(api, cloud):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    calls = [verb for host in cloud.hosts.values() for verb, uuid in host.driver.calls if uuid == server_id]
    assert calls.index("signal_shutdown") < calls.index("snapshot") < calls.index("destroy")


def test_one_that_is_paused_keeps_its_memory_until_its_disk_is_safe(api, cloud):
    server_id = booted(api, cloud, "paused")
    act(api, server_id, SHELVE)
    two_hosts.until(cloud, "snapshot")
    assert power(cloud, server_id) == "PAUSED"
    cloud.work()
    is_offloaded(cloud, server_id)


def test_what_needs_a_host_is_a_conflict_without_one(api, cloud):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    for body in (SHELVE, {"os-start": None}, {"os-stop": None}, {"reboot": {"type": "HARD"}}, {"pause": None},
                 {"rescue": None}, {"createImage": {"name": "x"}}, {"resize": {"flavorRef": "1"}},
                 {"os-getConsoleOutput": {}}):  # fmt: skip
        assert act(api, server_id, body).status_code in (400, 409), body
    is_offloaded(cloud, server_id)


def test_while_it_goes_on_every_other_action_is_a_conflict(api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, SHELVE)
    one_host.is_busy(api, server_id, SHELVE, "shelving")
    cloud.work()
    is_offloaded(cloud, server_id)


def test_in_the_wrong_state_it_is_a_conflict_and_leaves_no_image(api, admin, cloud):
    server_id = booted(api, cloud)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    answer = act(api, server_id, SHELVE)
    text = f"Cannot 'shelve' instance {server_id} while it is in vm_state error"
    assert (answer.status_code, message(answer)) == (409, text)
    assert not images()


def test_those_who_may_not_are_refused(api, stranger, reader, cloud):
    server_id = booted(api, cloud)
    assert act(stranger, server_id, SHELVE).status_code == 404
    assert act(reader, server_id, SHELVE).status_code == 403
    act(api, server_id, {"lock": None})
    assert act(api, server_id, SHELVE).status_code == 409


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_it_is_shelved_in_the_end(name, when, api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, SHELVE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_offloaded(cloud, server_id)


@pytest.mark.parametrize("was", WAYS)
def test_a_snapshot_that_fails_leaves_the_server_as_it_was(was, api, admin, cloud):
    server_id = booted(api, cloud, was)
    cloud.host_of(server_id).driver.faults.fail("snapshot", error=VirtError)
    done(api, cloud, server_id, SHELVE)
    is_as_before(cloud, server_id, was)
    assert stories.last_action(admin, server_id)["message"] == "Error"
    done(api, cloud, server_id, SHELVE)
    is_offloaded(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", UNDOS)
def test_whoever_is_killed_while_it_is_made_good_it_is_as_it_was(name, when, api, cloud):
    server_id = booted(api, cloud)
    cloud.host_of(server_id).driver.faults.fail("snapshot", error=VirtError)
    act(api, server_id, SHELVE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_as_before(cloud, server_id)


@pytest.mark.parametrize("was", ["active", "paused"])
def test_while_the_image_service_is_away_it_is_tried_again_and_then_all_is_as_it_was(was, api, cloud, settings):
    server_id = booted(api, cloud, was)
    act(api, server_id, SHELVE)
    settings.PUBLIC_URL = "http://127.0.0.1:9"
    cloud.work()
    assert stories.states(cloud, server_id) == (was, "shelving")
    one_host.tried_out(cloud)
    is_as_before(cloud, server_id, was)


def test_an_image_service_that_comes_back_gets_its_image(api, cloud, settings):
    server_id = booted(api, cloud)
    url = django_settings.PUBLIC_URL
    settings.PUBLIC_URL = "http://127.0.0.1:9"
    done(api, cloud, server_id, SHELVE)
    settings.PUBLIC_URL = url
    stories.later(cloud)
    cloud.work()
    is_offloaded(cloud, server_id)


def test_a_host_that_does_not_let_go_at_once_is_asked_again(api, cloud):
    server_id = booted(api, cloud)
    cloud.host_of(server_id).driver.faults.fail("destroy", times=3, error=HypervisorUnavailable)
    done(api, cloud, server_id, SHELVE)
    one_host.tried_out(cloud)
    is_offloaded(cloud, server_id)


def test_a_host_that_never_lets_go_leaves_it_shelved_with_its_image(api, admin, cloud):
    """The guest may be half gone, so the image is the one disk that is sure."""
    server_id = booted(api, cloud)
    driver = cloud.host_of(server_id).driver
    driver.faults.fail("destroy", times=-1, error=VirtError)
    act(api, server_id, SHELVE)
    one_host.tried_out(cloud)
    is_kept(cloud, server_id)
    assert stories.last_action(admin, server_id)["message"] == "Error"
    driver.faults.clear()
    done(admin, cloud, server_id, {"shelveOffload": None})
    is_offloaded(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_each_step_leaves_nothing(name, when, api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, SHELVE)
    one_host.preempted(api, cloud, server_id, two_hosts.until(cloud, name), when)
    assert not images()


@pytest.mark.parametrize("time", [0, -1])
def test_a_shelved_server_can_be_deleted_and_its_image_goes_with_it(time, api, cloud, settings):
    settings.SHELVED_OFFLOAD_TIME = time
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert cloud.row(server_id).deleted == (time == 0)  # without a host it is gone at once
    cloud.work()
    one_host.is_deleted(cloud, server_id)
    assert not images()
    assert quota.usage(PROJECT).instances == 0


@pytest.mark.parametrize("name", STEPS)
def test_a_reset_state_leaves_nothing_half_done(name, api, admin, cloud):
    """Before its guest goes it is where it was, and on; after that it is offloaded, whatever was said."""
    server_id = booted(api, cloud)
    act(api, server_id, SHELVE)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, name))
    two_hosts.work(cloud, step)
    assert act(admin, server_id, {"os-resetState": {"state": "active"}}).status_code == 202
    two_hosts.restart(cloud, step)
    cloud.work()
    if name == "offload":
        is_offloaded(cloud, server_id)
    else:
        is_as_before(cloud, server_id)


def test_the_image_of_one_that_waits_for_its_host_is_not_taken_for_an_orphan(api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, SHELVE)
    two_hosts.until(cloud, "power_off")
    Image.objects.filter(name="a-shelved").update(created_at="2020-01-01T00:00:00Z")
    assert abandoned_snapshots.discard() == 0
    cloud.work()
    is_offloaded(cloud, server_id)
