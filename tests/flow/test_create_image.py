"""Making an image of a server."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells import circuit_breaker
from cloud.images.models import Image
from compute.operations.action import ServerAction
from compute.periodic import abandoned_snapshots
from compute.virt.base import HypervisorUnavailable
from tests.flow import stories
from tests.flow.clocks import DAY, clock_of_a_process

STORY = stories.STORIES["create image"]
MARKS = ("image_type", "instance_uuid", "base_image_ref")


def test_a_snapshot_becomes_an_active_image_of_the_project(api, stranger, cloud):
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, {"createImage": {"name": "snap", "metadata": {"team": "blue"}}})
    image_id = answer.json()["image_id"]
    assert api.get(f"/image/v2/images/{image_id}").json()["status"] == "queued"

    cloud.work()

    image = api.get(f"/image/v2/images/{image_id}").json()
    assert (image["status"], image["name"], image["team"]) == ("active", "snap", "blue")
    assert (image["image_type"], image["instance_uuid"]) == ("snapshot", server_id)
    assert stranger.get(f"/image/v2/images/{image_id}").status_code == 404


@pytest.mark.parametrize("where", [(), ("stop",), ("pause",), ("suspend",)], ids=str)
def test_a_snapshot_leaves_the_server_as_it_was(where, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, where)
    before = stories.states(cloud, server_id)
    assert stories.act(api, server_id, STORY.body).status_code == 202
    assert stories.states(cloud, server_id) == (before[0], "image_snapshot")
    cloud.work()
    assert stories.states(cloud, server_id) == before
    stories.true_to_the_guest(cloud, server_id)
    done = stories.last_action(api, server_id)
    assert [(e["event"], e["result"]) for e in done["events"]] == [("compute_snapshot_instance", "Success")]
    stories.settled(cloud)


def test_the_image_of_a_snapshot_can_be_booted(api, cloud):
    server_id = cloud.boot(api)
    image_id = stories.act(api, server_id, STORY.body).json()["image_id"]
    cloud.work()
    clone = cloud.boot(api, "clone", imageRef=image_id)
    assert stories.states(cloud, clone) == ("active", None)


def test_before_2_45_the_id_is_in_the_location(api, cloud):
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, STORY.body, version="2.44")
    assert answer.headers["Location"].rpartition("/images/")[2] == str(Image.objects.get(name="snap").pk)


def test_a_snapshot_in_the_wrong_state_is_a_conflict_and_leaves_no_image(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(admin, server_id, {"os-resetState": {"state": "error"}})
    answer = stories.act(api, server_id, STORY.body)
    text = f"Cannot 'createImage' instance {server_id} while it is in vm_state error"
    assert (answer.status_code, stories.message(answer)) == (409, text)
    assert not _images()


def test_a_snapshot_of_a_server_that_was_never_built_is_a_conflict(api, admin, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=-1)
    server_id = cloud.boot(api)
    stories.act(admin, server_id, {"os-resetState": {"state": "active"}})
    answer = stories.act(api, server_id, STORY.body)
    assert answer.status_code == 409
    assert not _images()


def test_a_snapshot_is_refused_to_those_who_may_not_and_a_lock_does_not_mind(
    api, admin, stranger, reader, cloud
):
    stories.is_refused(STORY, api, admin, stranger, reader, cloud)


def test_a_snapshot_that_fails_discards_its_image_and_leaves_the_server_usable(api, admin, cloud):
    stories.failure_leads_out(STORY, api, admin, cloud)
    assert [image.status for image in _images()] == ["active"]  # the second one


def test_a_snapshot_waits_for_a_hypervisor_that_comes_back(api, cloud):
    stories.hypervisor_comes_back(STORY, api, cloud)
    assert [image.status for image in _images()] == ["active"]


def test_a_snapshot_waits_for_an_image_service_that_comes_back(api, cloud, settings):
    server_id = cloud.boot(api)
    url, settings.PUBLIC_URL = settings.PUBLIC_URL, "http://127.0.0.1:9"
    stories.act(api, server_id, STORY.body)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", "image_snapshot")
    settings.PUBLIC_URL = url
    stories.later(cloud)
    cloud.work()
    assert [image.status for image in _images()] == ["active"]
    stories.settled(cloud)


def test_a_delete_cancels_a_snapshot_and_its_image(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, STORY.body)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert not _images()
    stories.settled(cloud)


def test_a_delete_does_not_wait_for_the_next_try_of_a_snapshot(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.fail("snapshot", times=-1, error=HypervisorUnavailable)
    stories.act(api, server_id, STORY.body)
    cloud.work()
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert cloud.row(server_id).deleted
    assert not _images()
    stories.settled(cloud)


@pytest.mark.parametrize("value", [None, {}, {"name": ""}, {"name": "a", "metadata": {"k": 1}}, {"name": "x" * 256}])
def test_a_snapshot_asked_for_wrongly_is_a_bad_request(value, api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, {"createImage": value}).status_code == 400
    assert not _images()


def test_a_scheduler_whose_clock_is_ahead_discards_no_snapshot_that_is_just_being_asked_for(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    _killed_before_its_action(api, server_id, monkeypatch)
    with clock_of_a_process(DAY):
        assert abandoned_snapshots.discard() == 0
    _is_minutes_old()
    with clock_of_a_process(-DAY):
        assert abandoned_snapshots.discard() == 1


def test_a_snapshot_whose_api_was_killed_does_not_stay_in_the_image_list_for_ever(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    image_id = _killed_before_its_action(api, server_id, monkeypatch)
    _is_minutes_old()
    assert abandoned_snapshots.discard() == 1
    assert api.get(f"/image/v2/images/{image_id}").status_code == 404
    assert abandoned_snapshots.discard() == 0
    assert stories.act(api, server_id, STORY.body).status_code == 202  # and another one comes
    cloud.work()
    assert [image.status for image in _images()] == ["active"]


def test_a_snapshot_that_was_just_asked_for_is_left_alone(api, cloud, monkeypatch):
    _killed_before_its_action(api, cloud.boot(api), monkeypatch)
    assert abandoned_snapshots.discard() == 0
    assert [image.status for image in _images()] == ["queued"]


def test_a_snapshot_that_waits_long_for_its_host_comes_in_the_end(api, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, STORY.body)
    _is_minutes_old()
    assert abandoned_snapshots.discard() == 0
    cloud.work()
    assert [image.status for image in _images()] == ["active"]


def test_a_snapshot_is_not_discarded_while_its_cell_does_not_answer(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    _killed_before_its_action(api, server_id, monkeypatch)
    _is_minutes_old()
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "cut off")
    assert abandoned_snapshots.discard() == 0
    circuit_breaker._down.clear()
    assert abandoned_snapshots.discard() == 1


@pytest.mark.parametrize("lacks", [MARKS, MARKS[:1], MARKS[1:2], MARKS[2:]])
def test_an_image_somebody_will_upload_next_week_is_left_alone(lacks, api, cloud):
    marks = {"image_type": "snapshot", "instance_uuid": cloud.boot(api), "base_image_ref": "x"}
    body = {"name": "snap", "visibility": "private", **{key: marks[key] for key in marks if key not in lacks}}
    assert api.send("post", "/image/v2/images", body).status_code == 201
    _is_minutes_old()
    assert abandoned_snapshots.discard() == 0
    assert [image.status for image in _images()] == ["queued"]


def test_a_snapshot_of_another_cloud_that_is_brought_here_is_left_alone(api, cloud):
    marks = {"image_type": "snapshot", "instance_uuid": "of-another-cloud", "base_image_ref": "x"}
    assert api.send("post", "/image/v2/images", {"name": "snap", **marks}).status_code == 201
    _is_minutes_old()
    assert abandoned_snapshots.discard() == 0
    assert [image.status for image in _images()] == ["queued"]


def test_snapshots_that_wait_do_not_hide_one_that_nobody_will_fill(api, cloud, monkeypatch):
    monkeypatch.setattr(abandoned_snapshots, "BATCH", 1)
    for name in ("a", "b", "c"):
        stories.act(api, cloud.boot(api, name), STORY.body)
    image_id = _killed_before_its_action(api, cloud.boot(api, "d"), monkeypatch)
    _is_minutes_old()
    assert sum(abandoned_snapshots.discard() for _ in range(5)) == 1
    assert len(_images()) == 3
    assert image_id not in {image.pk for image in _images()}


def _killed_before_its_action(api, server_id, monkeypatch):
    """kill -9 of the API: nothing in it gets to clean up."""

    def die(*_):
        raise stories.Killed

    before = {image.pk for image in _images()}
    with monkeypatch.context() as patch:
        patch.setattr(ServerAction, "begin", die)
        with pytest.raises(stories.Killed):
            stories.act(api, server_id, STORY.body)
    [image_id] = {image.pk for image in _images()} - before
    return image_id


def _is_minutes_old():
    Image.objects.filter(name="snap").update(created_at=timezone.now() - timedelta(minutes=5))


def _images():
    return list(Image.objects.filter(name="snap").exclude(status="deleted"))
