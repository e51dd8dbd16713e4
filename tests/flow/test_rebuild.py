"""A server built anew where it is, with its host or the conductor dying meanwhile."""

from __future__ import annotations

import base64

import pytest

from cells.models import RequestSpec
from cloud.images import service
from cloud.images.models import Image
from compute.models import KeyPair
from compute.operations import registry
from compute.virt.base import HypervisorUnavailable, ImageUnusable
from compute.virt.fake.effects import Effect
from tests.byhand import DISK
from tests.flow import stories, two_hosts
from tests.flow.stories import Killed, act, message, states
from tests.flow.two_hosts import until

STEPS = [spec.name for spec in registry.named("Rebuild").steps]
ANEW = [Effect.SPAWNED, Effect.OFF_BY_GUEST, Effect.DESTROYED, Effect.SPAWNED]


def body(cloud, **more):
    """Rebuild it from the image it has."""
    return {"rebuild": {"imageRef": cloud.image.id, **more}}


def other_image(cloud, **more):
    """Another image with the same bytes."""
    made = Image.objects.get(pk=cloud.image.id)
    made.pk, made.name = "7" * 8 + cloud.image.id[8:], "other"
    for name, value in more.items():
        setattr(made, name, value)
    made.save(force_insert=True)
    service.path(made.pk).parent.mkdir(parents=True, exist_ok=True)
    service.path(made.pk).write_bytes(DISK)
    return made


def effects(cloud, server_id):
    return [done.effect for done in cloud.host_of(server_id).driver.effects(server_id)]


def is_back(cloud, server_id, state="active"):
    assert states(cloud, server_id) == (state, None)
    assert cloud.history(server_id)[-1].message is None
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def test_a_rebuilt_server_runs_from_its_image_again(api, cloud):
    server_id = cloud.boot(api)
    answer = act(api, server_id, body(cloud))
    assert answer.status_code == 202
    shown = answer.json()["server"]
    assert (shown["id"], shown["status"], shown["OS-EXT-STS:task_state"]) == (server_id, "REBUILD", "rebuilding")
    assert answer.headers["Location"].endswith(f"/servers/{server_id}")
    assert "adminPass" not in shown

    cloud.work()

    is_back(cloud, server_id)
    assert effects(cloud, server_id) == ANEW
    done = stories.last_action(api, server_id)
    assert (done["action"], [(event["event"], event["result"]) for event in done["events"]]) == (
        "rebuild",
        [("rebuild_server", "Success"), ("compute_stop_instance", "Success"),
         ("compute_detach_instance", "Success"), ("compute_rebuild_instance", "Success")],
    )  # fmt: skip


def test_a_stopped_server_is_rebuilt_and_stays_off(api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, ("stop",))
    assert act(api, server_id, body(cloud)).status_code == 202
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "REBUILD"
    cloud.work()
    is_back(cloud, server_id, "stopped")
    assert effects(cloud, server_id)[-2:] == [Effect.DESTROYED, Effect.BUILT]
    stories.lead(api, cloud, server_id, ("start",))
    stories.true_to_the_guest(cloud, server_id)


def test_a_server_in_error_is_rebuilt_and_has_no_fault_any_more(api, admin, cloud):
    server_id = cloud.boot(api)
    act(admin, server_id, {"os-resetState": {"state": "error"}})
    assert act(api, server_id, body(cloud)).status_code == 202
    cloud.work()
    is_back(cloud, server_id)
    assert cloud.row(server_id).fault is None


def test_a_server_that_never_had_a_disk_is_rebuilt(api, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=-1)
    server_id = cloud.boot(api)
    assert states(cloud, server_id) == ("error", None)
    assert cloud.used()["host1"] == cloud.used()["host2"] == (0, 0)
    assert act(api, server_id, body(cloud)).status_code == 202
    cloud.work()
    assert states(cloud, server_id) == ("error", None)
    assert sum(used for used, _ in cloud.used().values()) == 0  # it failed again, and holds nothing again
    stories.settled(cloud)

    for host in cloud.hosts.values():
        host.driver.faults.clear()
    assert act(api, server_id, body(cloud)).status_code == 202
    cloud.work()
    is_back(cloud, server_id)


def test_what_the_server_is_to_be_is_on_record_when_its_old_disk_is_gone(api, cloud):
    server_id = cloud.boot(api, metadata={"old": "1"}, description="was")
    KeyPair.objects.create(user_id=api.caller.user_id, name="k", public_key="ssh-ed25519 AAA", fingerprint="f")
    new, data = other_image(cloud), base64.b64encode(b"hi").decode()
    order = {"imageRef": new.pk, "name": "b", "description": "is", "metadata": {"new": "2"}, "key_name": "k",
             "user_data": data, "hostname": "other.example.org", "OS-DCF:diskConfig": "AUTO",
             "accessIPv4": "192.0.2.7", "accessIPv6": "2001:0db8:0:0:0:0:0.0.0.7", "adminPass": "x"}  # fmt: skip
    answer = act(api, server_id, {"rebuild": order})
    assert answer.status_code == 202, answer.content

    shown = answer.json()["server"]
    assert (shown["name"], shown["image"]["id"], shown["user_data"]) == ("b", new.pk, data)
    until(cloud, "destroy_guest")
    assert (cloud.row(server_id).display_name, cloud.row(server_id).image_id) == ("a", cloud.image.id)
    cloud.work()

    is_back(cloud, server_id)
    shown = api.get(f"/servers/{server_id}", version="2.96").json()["server"]
    assert (shown["name"], shown["description"], shown["metadata"]) == ("b", "is", {"new": "2"})
    assert (shown["key_name"], shown["image"]["id"]) == ("k", new.pk)
    assert (shown["accessIPv4"], shown["accessIPv6"], shown["OS-DCF:diskConfig"]) == (
        "192.0.2.7", "2001:db8::7", "AUTO",
    )  # fmt: skip
    row = cloud.row(server_id)
    assert (row.hostname, row.user_data, row.key_data) == ("other.example.org", data, "ssh-ed25519 AAA")
    assert RequestSpec.objects.get(pk=server_id).image_id == new.pk
    assert f"image={new.pk}" in cloud.host_of(server_id).driver.console_output(server_id)

    nothing = {"key_name": None, "user_data": None, "description": None, "metadata": {}}
    assert act(api, server_id, body(cloud, **nothing)).status_code == 202
    cloud.work()
    row = cloud.row(server_id)
    assert (row.key_name, row.key_data, row.user_data, row.description, row.metadata) == (None, "", "", None, {})


def test_before_2_75_the_answer_has_no_extensions_and_before_2_57_no_user_data(api, cloud):
    server_id = cloud.boot(api)
    shown = act(api, server_id, body(cloud), version="2.56").json()["server"]
    assert not {"OS-EXT-STS:vm_state", "user_data"} & set(shown)
    assert shown["status"] == "REBUILD"


def test_the_answer_to_a_rebuild_names_the_key_from_2_54(api, cloud):
    server_id = cloud.boot(api)
    KeyPair.objects.create(user_id=api.caller.user_id, name="k", public_key="ssh-ed25519 AAA", fingerprint="f")
    shown = act(api, server_id, body(cloud, key_name="k"), version="2.54").json()["server"]
    assert (shown["key_name"], "config_drive" in shown) == ("k", False)
    cloud.work()
    assert "key_name" not in act(api, server_id, body(cloud), version="2.53").json()["server"]


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_the_server_is_rebuilt(name, when, api, cloud):
    server_id = cloud.boot(api)
    assert act(api, server_id, body(cloud)).status_code == 202
    two_hosts.killed(cloud, until(cloud, name), when)
    cloud.work()
    is_back(cloud, server_id)
    assert effects(cloud, server_id) == ANEW


def test_a_host_killed_in_the_middle_of_building_builds_again(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, body(cloud))
    step = until(cloud, "build")
    cloud.host_of(server_id).driver.faults.fail("spawn", error=Killed)
    with pytest.raises(Killed):
        cloud.work()
    assert two_hosts.restart(cloud, step) == 1
    cloud.work()
    is_back(cloud, server_id)


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
def test_a_rebuild_that_fails_is_an_error_with_a_fault_and_works_the_next_time(when, api, cloud):
    server_id, new = cloud.boot(api), other_image(cloud)
    cloud.host_of(server_id).driver.faults.fail("spawn", error=ImageUnusable)
    assert act(api, server_id, body(cloud, imageRef=new.pk)).status_code == 202
    step = until(cloud, "restore_image_record")
    two_hosts.killed(cloud, step, when)
    cloud.work()
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["fault"]["message"]) == ("ERROR", "spawn failed as injected")
    assert cloud.history(server_id)[-1].message == "Error"
    assert RequestSpec.objects.get(pk=server_id).image_id == shown["image"]["id"] == new.pk

    assert act(api, server_id, body(cloud)).status_code == 202
    cloud.work()
    is_back(cloud, server_id)


def test_a_rebuild_that_fails_before_anything_happened_leaves_the_server_as_it_was(api, cloud):
    server_id, new = cloud.boot(api), other_image(cloud)
    cloud.host_of(server_id).driver.faults.fail("save_timer", error=ImageUnusable)
    assert act(api, server_id, body(cloud, imageRef=new.pk)).status_code == 202
    cloud.work()
    assert states(cloud, server_id) == ("active", None)
    assert cloud.row(server_id).image_id == RequestSpec.objects.get(pk=server_id).image_id == cloud.image.id
    stories.settled(cloud)


def test_a_rebuild_waits_for_a_hypervisor_that_comes_back(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.fail("spawn", times=2, error=HypervisorUnavailable)
    act(api, server_id, body(cloud))
    for _ in range(3):
        cloud.work()
        stories.later(cloud)
    cloud.work()
    is_back(cloud, server_id)


@pytest.mark.parametrize("name", STEPS)
def test_a_delete_during_a_rebuild_leaves_nothing(name, api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, body(cloud))
    until(cloud, name)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert cloud.row(server_id).deleted
    stories.settled(cloud)


def test_a_second_action_is_refused_meanwhile(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, body(cloud))
    for other in (body(cloud), {"os-stop": None}, {"reboot": {"type": "HARD"}}):
        answer = act(api, server_id, other)
        assert (answer.status_code, message(answer).endswith("while it is in task_state rebuilding")) == (409, True)
    cloud.work()
    is_back(cloud, server_id)


@pytest.mark.parametrize("where", ["pause", "suspend"])
def test_a_rebuild_in_the_wrong_state_is_a_conflict(where, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, (where,))
    answer = act(api, server_id, body(cloud))
    text = f"Cannot 'rebuild' instance {server_id} while it is in vm_state {where.removesuffix('e')}"
    assert answer.status_code == 409
    assert message(answer).startswith(text)


def test_a_rebuild_is_refused_to_those_who_may_not(api, stranger, reader, cloud):
    server_id = cloud.boot(api)
    assert act(stranger, server_id, body(cloud)).status_code == 404
    assert act(reader, server_id, body(cloud)).status_code == 403
    act(api, server_id, {"lock": None})
    assert act(api, server_id, body(cloud)).status_code == 409


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"virtual_size": 2 << 30}, "Flavor's disk is too small for requested image."),
        ({"min_disk": 5}, "Flavor's disk is too small for requested image."),
        ({"min_ram": 4096}, "Flavor's memory is too small for requested image."),
        ({"status": "queued"}, "is not active."),
        ({"status": "deactivated"}, "is not active."),
        ({"status": "deleted"}, "Cannot find image for rebuild"),
        ({"visibility": "private"}, "Cannot find image for rebuild"),
    ],
)
def test_an_image_that_will_not_do_is_a_bad_request(facts, text, api, cloud):
    server_id, new = cloud.boot(api), other_image(cloud, **facts)
    answer = act(api, server_id, body(cloud, imageRef=new.pk))
    assert answer.status_code == 400
    assert text in message(answer)
    assert states(cloud, server_id) == ("active", None)


@pytest.mark.parametrize(
    ("more", "version"),
    [
        ({"imageRef": "nonsense"}, "2.96"),
        ({"imageRef": ""}, "2.96"),
        ({"nonsense": 1}, "2.96"),
        ({"description": "d"}, "2.18"),
        ({"key_name": "k"}, "2.53"),
        ({"key_name": "there-is-none"}, "2.54"),
        ({"user_data": "aGk="}, "2.56"),
        ({"user_data": "?"}, "2.57"),
        ({"personality": []}, "2.57"),
        ({"personality": [{"path": "/a", "contents": "aGk="}]}, "2.56"),
        ({"trusted_image_certificates": None}, "2.62"),
        ({"trusted_image_certificates": ["a"]}, "2.63"),
        ({"hostname": "h1"}, "2.89"),
        ({"hostname": "h1.example.org"}, "2.93"),
        ({"preserve_ephemeral": True}, "2.96"),
        ({"metadata": {"k": 1}}, "2.96"),
        ({"accessIPv4": "nonsense"}, "2.96"),
    ],
)
def test_a_rebuild_asked_for_wrongly_is_a_bad_request(more, version, api, cloud):
    server_id = cloud.boot(api)
    assert act(api, server_id, body(cloud, **more), version=version).status_code == 400
    assert states(cloud, server_id) == ("active", None)


def test_more_metadata_than_the_quota_lets_is_forbidden(api, cloud, settings):
    server_id = cloud.boot(api)
    many = {f"k{number}": "v" for number in range(settings.QUOTA_DEFAULTS["metadata_items"] + 1)}
    assert act(api, server_id, body(cloud, metadata=many)).status_code == 403
    assert states(cloud, server_id) == ("active", None)


def test_a_draining_host_ends_a_rebuild_it_has_begun_and_begins_no_other(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, body(cloud))
    assert until(cloud, "power_off").queue == "requests"
    assert until(cloud, "destroy_guest").queue == "ops"
    assert until(cloud, "build").queue == "ops"
    cloud.work()
    is_back(cloud, server_id)
