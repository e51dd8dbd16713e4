"""Rescue: another disk boots, and every way that leads back."""

from __future__ import annotations

import string

import pytest

from cloud.images import service
from cloud.images.models import Image
from compute.virt.base import ImageUnusable, InsufficientResources, VirtError
from tests.flow import one_host, stories, two_hosts
from tests.flow.one_host import MOMENTS, booted, done, power
from tests.flow.stories import act, message

RESCUE, UNRESCUE = {"rescue": None}, {"unrescue": None}
STEPS = ["power_off", "rescue"]
UNDOS = ["unrescue", "power_on_again"]


def boots_from(cloud, server_id: str) -> str:
    """The image its guest booted the last time, by its own console."""
    said = cloud.host_of(server_id).driver.console_output(server_id)
    return said.rpartition("image=")[2].split()[0]


def in_rescue(cloud, server_id: str) -> bool:
    """Whether a rescue disk is there."""
    return bool(cloud.host_of(server_id).driver._state.get(server_id).rescue)


def is_rescued(cloud, server_id: str) -> None:
    """It runs its rescue disk, and the record says so."""
    row = cloud.row(server_id)
    assert (row.vm_state, row.task_state, row.power_state) == ("rescued", None, 1)
    assert in_rescue(cloud, server_id)
    assert power(cloud, server_id) == "RUNNING"
    stories.settled(cloud)


def is_as_before(cloud, server_id: str, was: str = "active") -> None:
    """Its own disk, in the state it had."""
    assert stories.states(cloud, server_id) == (was, None)
    assert not in_rescue(cloud, server_id)
    assert power(cloud, server_id) == stories.LIVE[was].name
    assert boots_from(cloud, server_id) == cloud.image.id
    stories.settled(cloud)


@pytest.fixture
def other_image(cloud) -> str:
    """An image to be rescued with."""
    copied = Image.objects.get(pk=cloud.image.id)
    copied.pk, copied.name = "11111111-2222-4333-8444-555555555555", "rescue"
    copied.save(force_insert=True)
    service.path(copied.pk).write_bytes(service.path(cloud.image.id).read_bytes())
    return copied.pk


@pytest.mark.parametrize("was", ["active", "stopped"])
def test_a_rescued_server_runs_its_own_image_anew_and_comes_back_with_its_own_disk(was, api, admin, cloud):
    server_id = booted(api, cloud, was)
    answer = act(api, server_id, RESCUE)
    assert answer.status_code == 200
    assert stories.states(cloud, server_id) == (was, "rescuing")
    cloud.work()
    is_rescued(cloud, server_id)
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:power_state"]) == ("RESCUE", 1)
    events = [event["event"] for event in stories.last_action(admin, server_id)["events"]]
    assert set(events) == {"compute_rescue_power_off", "compute_rescue_instance"}

    done(api, cloud, server_id, UNRESCUE)
    is_as_before(cloud, server_id)


def test_another_image_can_be_booted(api, cloud, other_image):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, {"rescue": {"rescue_image_ref": other_image}})
    is_rescued(cloud, server_id)
    assert boots_from(cloud, server_id) == other_image
    done(api, cloud, server_id, UNRESCUE)
    is_as_before(cloud, server_id)


def test_the_guest_gets_its_grace_first(api, cloud):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, RESCUE)
    calls = [verb for verb, uuid in cloud.host_of(server_id).driver.calls if uuid == server_id]
    assert calls.index("signal_shutdown") < calls.index("rescue")


def test_the_password_is_twelve_letters_or_what_was_asked_for_and_is_kept_nowhere(api, cloud, caplog):
    server_id = booted(api, cloud)
    made = act(api, server_id, RESCUE).json()["adminPass"]
    assert len(made) == 12
    assert set(made) <= set(string.ascii_letters + string.digits)
    cloud.work()
    done(api, cloud, server_id, UNRESCUE)
    asked = act(api, server_id, {"rescue": {"adminPass": "open-sesame"}})
    assert asked.json() == {"adminPass": "open-sesame"}
    cloud.work()
    kept = str([action.params for action in cloud.history(server_id)]) + caplog.text
    assert "open-sesame" not in kept
    assert made not in kept


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"rescue_image_ref": "11111111-2222-4333-8444-555555555550"}, "Requested rescue image '11111111-"),
        ({"rescue_image_ref": "x"}, "Invalid input for field/attribute rescue_image_ref"),
        ({"adminPass": 3}, "Invalid input for field/attribute adminPass"),
        ({"else": 3}, "Additional properties are not allowed"),
    ],
)
def test_a_rescue_asked_for_wrongly_is_a_bad_request(value, text, api, cloud):
    server_id = booted(api, cloud)
    answer = act(api, server_id, {"rescue": value})
    assert answer.status_code == 400
    assert text in message(answer)
    assert stories.states(cloud, server_id) == ("active", None)


@pytest.mark.parametrize("was", ["paused", "suspended"])
def test_a_rescue_in_the_wrong_state_is_a_conflict(was, api, cloud):
    server_id = booted(api, cloud, was)
    answer = act(api, server_id, RESCUE)
    text = f"Cannot 'rescue' instance {server_id} while it is in vm_state {was}"
    assert (answer.status_code, message(answer)) == (409, text)


def test_what_is_legal_for_a_rescued_server_is_to_leave_rescue(api, cloud):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, RESCUE)
    for body in (RESCUE, {"os-stop": None}, {"os-start": None}, {"reboot": {"type": "HARD"}}, {"pause": None},
                 {"suspend": None}, {"shelve": None}, {"createImage": {"name": "x"}}):  # fmt: skip
        answer = act(api, server_id, body)
        assert (answer.status_code, "vm_state rescued" in message(answer)) == (409, True), body
    is_rescued(cloud, server_id)


def test_while_it_goes_on_every_other_action_is_a_conflict(api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, RESCUE)
    one_host.is_busy(api, server_id, RESCUE, "rescuing")
    cloud.work()
    is_rescued(cloud, server_id)


def test_those_who_may_not_are_refused(api, stranger, reader, cloud):
    server_id = booted(api, cloud)
    assert act(stranger, server_id, RESCUE).status_code == 404
    assert act(reader, server_id, RESCUE).status_code == 403
    act(api, server_id, {"lock": None})
    assert act(api, server_id, RESCUE).status_code == 409


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_host_that_is_killed_carries_it_out_in_its_next_life(name, when, api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, RESCUE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_rescued(cloud, server_id)


def test_a_host_killed_in_the_middle_of_the_verb_carries_it_out(api, cloud):
    server_id = booted(api, cloud)
    driver = cloud.host_of(server_id).driver
    driver.faults.fail("rescue", error=stories.Killed)
    act(api, server_id, RESCUE)
    with pytest.raises(stories.Killed):
        cloud.work()
    cloud.host_of(server_id).restart()
    cloud.work()
    is_rescued(cloud, server_id)


@pytest.mark.parametrize("was", ["active", "stopped"])
@pytest.mark.parametrize("error", [VirtError, ImageUnusable, InsufficientResources])
def test_a_rescue_that_fails_leaves_the_server_as_it_was(error, was, api, admin, cloud):
    server_id = booted(api, cloud, was)
    cloud.host_of(server_id).driver.faults.fail("rescue", error=error)
    done(api, cloud, server_id, RESCUE)
    is_as_before(cloud, server_id, was)
    assert stories.last_action(admin, server_id)["message"] == "Error"
    done(api, cloud, server_id, RESCUE)
    is_rescued(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", UNDOS)
def test_a_host_killed_while_it_makes_good_a_failed_rescue_makes_it_good(name, when, api, cloud):
    server_id = booted(api, cloud)
    cloud.host_of(server_id).driver.faults.fail("rescue", error=VirtError)
    act(api, server_id, RESCUE)
    two_hosts.killed(cloud, two_hosts.until(cloud, name), when)
    cloud.work()
    is_as_before(cloud, server_id)


def test_an_image_that_is_gone_by_then_leaves_the_server_as_it_was(api, cloud, other_image):
    server_id = booted(api, cloud)
    act(api, server_id, {"rescue": {"rescue_image_ref": other_image}})
    Image.objects.filter(pk=other_image).update(status="deleted")
    cloud.work()
    is_as_before(cloud, server_id)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_each_step_leaves_nothing(name, when, api, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, RESCUE)
    one_host.preempted(api, cloud, server_id, two_hosts.until(cloud, name), when)


def test_a_rescued_server_can_be_deleted(api, cloud):
    server_id = booted(api, cloud)
    done(api, cloud, server_id, RESCUE)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    one_host.is_deleted(cloud, server_id)


def test_a_server_in_error_can_be_rescued(api, admin, cloud):
    server_id = booted(api, cloud)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    done(api, cloud, server_id, RESCUE)
    is_rescued(cloud, server_id)


def test_a_reset_state_in_the_middle_leaves_it_on_its_own_disk(api, admin, cloud):
    server_id = booted(api, cloud)
    act(api, server_id, RESCUE)
    step = two_hosts.claim(cloud, two_hosts.until(cloud, "rescue"))
    two_hosts.work(cloud, step)
    act(admin, server_id, {"os-resetState": {"state": "active"}})
    two_hosts.restart(cloud, step)
    cloud.work()
    is_as_before(cloud, server_id)


def test_its_project_and_its_host_count_it_as_before(api, cloud):
    server_id = booted(api, cloud)
    used = cloud.used()
    done(api, cloud, server_id, RESCUE)
    assert cloud.used() == used
