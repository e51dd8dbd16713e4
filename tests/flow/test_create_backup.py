"""Making backups of a server, of which only the newest are kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cloud.images.models import Image
from compute.operations.action import ServerAction
from compute.periodic import abandoned_snapshots
from compute.virt.base import VirtError
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states
from tests.flow.two_hosts import killed, until

STEPS = ("snapshot", "rotate")
MOMENTS = ("before", "inside", "after the work")


def body(rotation=1, kind="daily", name="bak", **more):
    return {"createBackup": {"name": name, "backup_type": kind, "rotation": rotation, **more}}


def made(api, cloud, server_id, **how):
    answer = act(api, server_id, body(**how))
    assert answer.status_code == 202, answer.content
    cloud.work()
    return answer


def kept(kind="daily"):
    living = Image.objects.filter(properties__image_type="backup", properties__backup_type=kind)
    return [image.name for image in living.exclude(status="deleted").order_by("created_at")]


def test_a_backup_is_an_image_that_says_what_it_is_of(api, stranger, cloud):
    server_id = cloud.boot(api)
    answer = act(api, server_id, body(metadata={"team": "blue"}))
    assert states(cloud, server_id) == ("active", "image_backup")
    image_id = answer.json()["image_id"]
    busy = act(api, server_id, body())
    text = f"Cannot 'createBackup' instance {server_id} while it is in task_state image_backup"
    assert (busy.status_code, message(busy)) == (409, text)

    cloud.work()

    image = api.get(f"/image/v2/images/{image_id}").json()
    assert (image["status"], image["name"], image["team"]) == ("active", "bak", "blue")
    assert (image["image_type"], image["backup_type"], image["instance_uuid"]) == ("backup", "daily", server_id)
    assert stranger.get(f"/image/v2/images/{image_id}").status_code == 404
    done = stories.last_action(api, server_id)
    assert (done["action"], done["message"]) == ("createBackup", None)
    assert sorted((e["event"], e["result"]) for e in done["events"]) == [
        ("compute_backup_instance", "Success"), ("conductor_rotate_backups", "Success"),
    ]  # fmt: skip
    assert states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)
    clone = cloud.boot(api, "clone", imageRef=image_id)
    assert states(cloud, clone) == ("active", None)


@pytest.mark.parametrize("where", ["stop", "pause", "suspend"])
def test_a_backup_leaves_the_server_as_it_was(where, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, (where,))
    before = states(cloud, server_id)
    made(api, cloud, server_id)
    assert states(cloud, server_id) == before
    stories.true_to_the_guest(cloud, server_id)


def test_only_the_newest_of_a_server_and_a_type_are_kept(api, cloud):
    server_id, other = cloud.boot(api), cloud.boot(api, "b")
    made(api, cloud, other, name="of another")
    made(api, cloud, server_id, kind="weekly", name="weekly")
    for number in range(4):
        made(api, cloud, server_id, rotation="2", name=f"bak{number}")
    assert kept() == ["of another", "bak2", "bak3"]
    assert kept("weekly") == ["weekly"]
    assert cloud.history(server_id)[-1].outcome == "1 deleted"


def test_images_of_others_that_say_they_are_backups_are_left_alone(api, stranger, cloud):
    server_id = cloud.boot(api)
    said = {"image_type": "backup", "backup_type": "daily", "instance_uuid": server_id}
    for owner in (api, stranger):
        assert owner.send("post", "/image/v2/images", {"name": "made up", **said}).status_code == 201
    Image.objects.filter(name="made up").update(created_at=timezone.now() - timedelta(days=1))
    Image.objects.filter(name="made up", owner=stranger.caller.project_id).update(status="active")
    made(api, cloud, server_id)
    assert kept() == ["made up", "made up", "bak"]  # one is another project's, one has no content


def test_a_protected_backup_stays_and_the_others_go(api, cloud):
    server_id = cloud.boot(api)
    made(api, cloud, server_id, rotation=3, name="first")
    made(api, cloud, server_id, rotation=3, name="second")
    Image.objects.filter(name="first").update(protected=True)
    made(api, cloud, server_id, rotation=1, name="third")
    assert kept() == ["first", "third"]
    assert cloud.history(server_id)[-1].outcome == "1 deleted, 1 protected and kept"


@pytest.mark.parametrize("version", ["2.44", "2.45"])
def test_with_rotation_0_no_backup_is_kept_and_none_is_named(version, api, cloud):
    server_id = cloud.boot(api)
    made(api, cloud, server_id, rotation=5)
    answer = act(api, server_id, body(rotation=0), version=version)
    assert (answer.status_code, answer.content, "Location" in answer.headers) == (202, b"", False)
    cloud.work()
    assert kept() == []
    assert cloud.history(server_id)[-1].message is None


def test_before_2_45_the_id_is_in_the_location(api, cloud):
    server_id = cloud.boot(api)
    answer = act(api, server_id, body(), version="2.44")
    assert answer.headers["Location"].rpartition("/images/")[2] == str(Image.objects.get(name="bak").pk)


@pytest.mark.parametrize("wrong", [
    {"name": "a"}, {"name": "a", "backup_type": "daily"}, {"name": "", "backup_type": "daily", "rotation": 1},
    {"name": "a", "backup_type": "daily", "rotation": -1}, {"name": "a", "backup_type": 1, "rotation": 1},
    {"name": "a", "backup_type": "daily", "rotation": 1, "more": 1}, None,
])  # fmt: skip
def test_a_backup_asked_for_wrongly_is_a_bad_request(wrong, api, cloud):
    server_id = cloud.boot(api)
    assert act(api, server_id, {"createBackup": wrong}).status_code == 400
    assert not kept()


def test_who_may_make_a_backup_and_a_lock_does_not_mind(api, admin, stranger, reader, cloud):
    server_id = cloud.boot(api)
    assert act(stranger, server_id, body()).status_code == 404
    assert act(reader, server_id, body()).status_code == 403
    act(api, server_id, {"lock": None})
    made(api, cloud, server_id)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    refused = act(api, server_id, body(name="not made"))
    text = f"Cannot 'createBackup' instance {server_id} while it is in vm_state error"
    assert (refused.status_code, message(refused)) == (409, text)
    assert kept() == ["bak"]


def test_a_backup_that_fails_discards_its_image_and_leaves_the_older_ones(api, admin, cloud):
    server_id = cloud.boot(api)
    made(api, cloud, server_id, name="old")
    cloud.host_of(server_id).driver.faults.fail("snapshot", error=VirtError)
    made(api, cloud, server_id, name="new")
    assert kept() == ["old"]
    assert states(cloud, server_id) == ("active", None)
    assert stories.last_action(admin, server_id)["message"] == "Error"
    stories.settled(cloud)


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("name", STEPS)
def test_whoever_runs_it_is_killed(name, when, api, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    made(admin, cloud, server_id, name="old")
    assert act(admin, server_id, body(name="new")).status_code == 202
    killed(cloud, until(cloud, name), when)
    cloud.work()
    assert kept() == ["new"]
    assert states(cloud, server_id) == ("active", None)
    assert cloud.history(server_id)[-1].message is None
    stories.settled(cloud)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_conductor_that_discards_the_image_of_one_that_failed_is_killed(when, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("snapshot", error=VirtError)
    assert act(admin, server_id, body()).status_code == 202
    killed(cloud, until(cloud, "discard_image"), when)
    cloud.work()
    assert kept() == []
    assert states(cloud, server_id) == ("active", None)
    assert cloud.history(server_id)[-1].message == "Error"
    stories.settled(cloud)


@pytest.mark.parametrize(("name", "left"), [("snapshot", ["old"]), ("rotate", ["new"])])
def test_a_delete_during_a_backup(name, left, admin, cloud):
    """Before the image is there nothing comes of it; after that it counts, and an older one goes."""
    server_id = two_hosts.booted(admin, cloud)
    made(admin, cloud, server_id, name="old")
    assert act(admin, server_id, body(name="new")).status_code == 202
    until(cloud, name)
    assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert cloud.row(server_id).deleted
    assert kept() == left
    stories.settled(cloud)


def test_a_backup_whose_api_was_killed_does_not_stay_in_the_image_list_for_ever(api, cloud, monkeypatch):
    server_id = cloud.boot(api)

    def die(*_):
        raise stories.Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerAction, "begin", die)
        with pytest.raises(stories.Killed):
            act(api, server_id, body())
    assert act(api, server_id, body(name="waits")).status_code == 202
    Image.objects.exclude(name="tiny").update(created_at=timezone.now() - timedelta(minutes=5))
    assert abandoned_snapshots.discard() == 1
    cloud.work()
    assert kept() == ["waits"]
