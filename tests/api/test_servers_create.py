"""POST /servers: what the stock clients send is taken; what is wrong is refused in Nova's words."""

from __future__ import annotations

import base64

import pytest

from cells.models import BuildRequest, InstanceMapping
from cloud.images.models import Image
from compute.models import Flavor, KeyPair
from compute.placement import quota
from tests.conftest import PROJECT

LONG = "x" * 256


def said(answer, status=400):
    assert answer.status_code == status, answer.content
    return next(iter(answer.json().values()))["message"]


def waiting(server_id):
    """What is recorded of a server that waits for a cell."""
    return BuildRequest.objects.get(pk=server_id).instance


@pytest.fixture
def create(api, cloud):
    """POST /servers with a good body, changed by keywords (None removes a key)."""

    def post(client=api, version="2.96", **more):
        body = cloud.body(**more)
        body["server"] = {k: v for k, v in body["server"].items() if v is not None}
        return client.send("post", "/servers", body, version=version)

    return post


def test_the_answer_names_the_server_and_where_it_is(create, api):
    answer = create()
    assert answer.status_code == 202
    created = answer.json()["server"]
    assert created.keys() >= {"id", "links", "OS-DCF:diskConfig", "security_groups"}
    assert answer.headers["Location"] == created["links"][0]["href"]
    assert answer.headers["Location"].endswith(f"/compute/v2.1/servers/{created['id']}")
    assert api.get(f"/servers/{created['id']}").json()["server"]["status"] == "BUILD"


def test_bodies_of_the_stock_clients_are_taken(create, cloud):
    image = cloud.image.id
    disk = {"uuid": image, "boot_index": 0, "source_type": "image", "destination_type": "local",
            "delete_on_termination": True}  # fmt: skip
    bodies = [
        # openstack server create --image --flavor --nic none
        {"min_count": 1, "max_count": 1, "networks": "none", "block_device_mapping_v2": [disk]},
        # openstack server create --nic auto --property --tag --description --hostname
        {"networks": "auto", "metadata": {"a": "b"}, "tags": ["x"], "description": "d", "hostname": "web.example.org"},
        # openstacksdk: conn.create_server(…)
        {"networks": "auto", "security_groups": [{"name": "default"}], "config_drive": False},
        # novaclient: nova boot --user-data --config-drive false
        {"user_data": base64.b64encode(b"#!/bin/sh\n").decode(), "config_drive": "false", "OS-DCF:diskConfig": "AUTO"},
        {"imageRef": None, "block_device_mapping_v2": [disk]},
        {"accessIPv4": "192.0.2.1", "accessIPv6": "2001:db8::1", "availability_zone": "nova"},
        {"user_data": base64.encodebytes(b"x" * 200).decode()},
    ]
    for body in bodies:
        answer = create(**body)
        assert answer.status_code == 202, (body, answer.content)


def test_what_is_asked_for_is_what_is_recorded(create, api, cloud):
    cloud.hosts["host1"].report(zone="west")
    answer = create(
        name="web", metadata={"k": "v"}, tags=["b", "a", "b"], description="d", availability_zone="west",
        hostname="web.example.org", networks="auto", accessIPv4="192.0.2.1",
    )  # fmt: skip
    shown = api.get(f"/servers/{answer.json()['server']['id']}").json()["server"]
    expected = {"name": "web", "metadata": {"k": "v"}, "tags": ["b", "a"], "description": "d",
                "OS-EXT-AZ:availability_zone": "west", "pinned_availability_zone": "west",
                "OS-EXT-SRV-ATTR:hostname": "web.example.org", "accessIPv4": "192.0.2.1",
                "OS-DCF:diskConfig": "MANUAL"}  # fmt: skip
    assert {key: shown[key] for key in expected} == expected


def test_a_key_pair_is_copied_into_the_server(create, api):
    KeyPair.objects.create(user_id=api.caller.user_id, name="mine", public_key="ssh-rsa A", fingerprint="f", type="ssh")
    server_id = create(key_name="mine").json()["server"]["id"]
    assert waiting(server_id)["key_data"] == "ssh-rsa A"
    assert api.get(f"/servers/{server_id}").json()["server"]["key_name"] == "mine"
    assert said(create(key_name="hers")) == "Invalid key_name provided."


WRONG = [  # body, version, what the answer says
    ({"flavorRef": "nope"}, "2.96", "Flavor nope could not be found."),
    ({"flavorRef": None}, "2.96", "'flavorRef' is a required property"),
    ({"flavorRef": ""}, "2.96", "Invalid input for field/attribute flavorRef. Value: ."),
    ({"flavorRef": {}}, "2.96", "Invalid input for field/attribute flavorRef"),
    ({"imageRef": None}, "2.96", "Missing imageRef attribute"),
    ({"imageRef": ""}, "2.96", "Missing imageRef attribute"),
    ({"imageRef": "tiny"}, "2.96", "Invalid input for field/attribute imageRef. Value: tiny."),
    ({"imageRef": "11111111-1111-4111-8111-111111111111"}, "2.96",
     "Can not find requested image"),
    ({"networks": None}, "2.37", "'networks' is a required property"),
    ({"networks": "some"}, "2.96", "Invalid input for field/attribute networks. Value: some."),
    ({"networks": [{"uuid": "11111111-1111-4111-8111-111111111111"}]}, "2.96", "This cloud has no network service"),
    ({"name": None}, "2.96", "'name' is a required property"),
    ({"name": ""}, "2.96", "Invalid input for field/attribute name. Value: ."),
    ({"name": " a"}, "2.96", "Invalid input for field/attribute name"),
    ({"name": "a "}, "2.96", "Invalid input for field/attribute name"),
    ({"name": "a\n"}, "2.96", "Invalid input for field/attribute name"),
    ({"name": "a\x07b"}, "2.96", "Invalid input for field/attribute name"),
    ({"name": LONG}, "2.96", "Invalid input for field/attribute name"),
    ({"name": 1}, "2.96", "Invalid input for field/attribute name. Value: 1. 1 is not of type 'string'"),
    ({"shoe_size": 43}, "2.96", "Additional properties are not allowed ('shoe_size' was unexpected)"),
    ({"description": "d"}, "2.18", "Additional properties are not allowed ('description' was unexpected)"),
    ({"tags": ["a"]}, "2.51", "Additional properties are not allowed ('tags' was unexpected)"),
    ({"hostname": "a-b"}, "2.89", "Additional properties are not allowed ('hostname' was unexpected)"),
    ({"host": "host1"}, "2.73", "Additional properties are not allowed ('host' was unexpected)"),
    ({"personality": []}, "2.57", "Additional properties are not allowed ('personality' was unexpected)"),
    ({"description": LONG}, "2.96", "Invalid input for field/attribute description"),
    ({"metadata": {"k": LONG}}, "2.96", "Invalid input for field/attribute k"),
    ({"metadata": {LONG: "v"}}, "2.96", "'xxx"),
    ({"metadata": {"": "v"}}, "2.96", "'' does not match any of the regexes"),
    ({"metadata": {"k\n": "v"}}, "2.96", "does not match any of the regexes"),
    ({"metadata": {"k": 1}}, "2.96", "Invalid input for field/attribute k. Value: 1. 1 is not of type 'string'"),
    ({"metadata": []}, "2.96", "Invalid input for field/attribute metadata"),
    ({"tags": [str(n) for n in range(51)]}, "2.96", "Invalid input for field/attribute tags"),
    ({"tags": ["a,b"]}, "2.96", "Invalid input for field/attribute 0. Value: a,b."),
    ({"tags": ["a/b"]}, "2.96", "Invalid input for field/attribute 0. Value: a/b."),
    ({"tags": [""]}, "2.96", "Invalid input for field/attribute 0"),
    ({"tags": ["x" * 61]}, "2.96", "Invalid input for field/attribute 0"),
    ({"user_data": "%%%"}, "2.96", "Userdata content must be base64 encoded."),
    ({"user_data": "ü"}, "2.96", "Userdata content must be base64 encoded."),
    ({"user_data": "A" * 65536}, "2.96", "Invalid input for field/attribute user_data"),
    ({"min_count": 0}, "2.96", "Invalid input for field/attribute min_count. Value: 0."),
    ({"min_count": "0"}, "2.96", "Invalid input for field/attribute min_count. Value: 0."),
    ({"min_count": -1}, "2.96", "Invalid input for field/attribute min_count. Value: -1."),
    ({"min_count": "x"}, "2.96", "Invalid input for field/attribute min_count. Value: x."),
    ({"min_count": 2, "max_count": 1}, "2.96", "min_count must be <= max_count"),
    ({"max_count": 10**9}, "2.96", "At most 1000 servers can be asked for at once."),
    ({"max_count": 1e300}, "2.96", "Invalid input for field/attribute max_count"),
    ({"max_count": "9" * 5000}, "2.96", "Invalid input for field/attribute max_count"),
    ({"availability_zone": "mars"}, "2.96", "The requested availability zone is not available"),
    ({"availability_zone": ""}, "2.96", "Invalid input for field/attribute availability_zone"),
    ({"hostname": "a"}, "2.90", "Invalid input for field/attribute hostname"),
    ({"hostname": "a.b"}, "2.93", "Invalid input for field/attribute hostname"),
    ({"hostname": "-ab"}, "2.96", "Invalid input for field/attribute hostname"),
    ({"accessIPv4": "300.1.1.1"}, "2.96", "'300.1.1.1' is not a 'ipv4'"),
    ({"accessIPv6": "10.0.0.1"}, "2.96", "'10.0.0.1' is not a 'ipv6'"),
    ({"config_drive": True}, "2.96", "Config drives are not offered by this cloud."),
    ({"config_drive": "maybe"}, "2.96", "Invalid input for field/attribute config_drive"),
    ({"security_groups": [{"name": "web"}]}, "2.96", "Security group web not found."),
    ({"trusted_image_certificates": ["a"]}, "2.96", "Image signature certificate validation is not offered"),
    ({"block_device_mapping_v2": [{"source_type": "volume", "uuid": "x"}]}, "2.96", "Block Device Mapping is Invalid"),
    ({"block_device_mapping_v2": ["x"]}, "2.96", "Block Device Mapping is Invalid"),
    ({"imageRef": None, "block_device_mapping_v2": [{"source_type": "image", "boot_index": 0}]}, "2.96",
     "Block Device Mapping is Invalid"),
    ({"OS-DCF:diskConfig": "NEVER"}, "2.96", "Invalid input for field/attribute OS-DCF:diskConfig"),
]  # fmt: skip


def test_every_wrong_body_is_refused_with_what_is_wrong(create):
    for body, version, text in WRONG:
        assert text in said(create(version=version, **body)), (body, version)
    assert not InstanceMapping.objects.exists()


def test_networks_may_be_missing_before_237(create):
    assert create(version="2.36", networks=None).status_code == 202


def test_a_body_of_another_shape_is_refused(api, cloud):
    good = cloud.body()
    for body in ({}, {"server": []}, {"server": "x"}, [], {"server": good["server"], "more": 1}, {"servers": good}):
        assert api.send("post", "/servers", body).status_code == 400, body


def test_scheduler_hints_go_by_both_names(api, cloud):
    for name in ("os:scheduler_hints", "OS-SCH-HNT:scheduler_hints"):
        assert api.send("post", "/servers", {**cloud.body(), name: {"any": "thing"}}).status_code == 202
        assert api.send("post", "/servers", {**cloud.body(), name: []}).status_code == 400


def test_a_flavor_that_is_not_the_projects_does_not_exist(create, admin):
    private = Flavor.objects.create(
        flavor_id="p", name="p", vcpus=1, memory_mb=1, disk_gb=1, extra_specs={}, is_public=False
    )
    assert said(create(flavorRef="p")) == "Flavor p could not be found."
    assert create(client=admin, flavorRef="p").status_code == 202
    private.access.create(project_id=PROJECT)
    assert create(flavorRef="p").status_code == 202
    Flavor.objects.filter(pk=private.pk).update(disabled=True)
    assert said(create(flavorRef="p")) == "Flavor p could not be found."


def test_a_flavor_too_small_for_the_image_is_refused(create, cloud, admin):
    Image.objects.filter(pk=cloud.image.pk).update(min_ram=1024)
    assert said(create()) == "Flavor's memory is too small for requested image."
    Image.objects.filter(pk=cloud.image.pk).update(min_ram=0, min_disk=2)
    assert said(create()).startswith("Flavor's disk is too small for requested image.")
    Image.objects.filter(pk=cloud.image.pk).update(min_disk=0, virtual_size=2 << 30)
    assert said(create()).startswith("Flavor's disk is too small for requested image.")
    Flavor.objects.create(flavor_id="0", name="0", vcpus=1, memory_mb=1, disk_gb=0, extra_specs={})
    assert said(create(flavorRef="0"), 403) == "Only volume-backed servers are allowed for flavors with zero disk."
    assert create(client=admin, flavorRef="0").status_code == 202


def test_an_image_that_is_not_ready_or_not_visible_is_refused(create, cloud):
    Image.objects.filter(pk=cloud.image.pk).update(status="queued")
    assert said(create()) == f"Image {cloud.image.pk} is not active."
    Image.objects.filter(pk=cloud.image.pk).update(status="active", visibility="private", owner="hers")
    assert said(create()) == "Can not find requested image"


def test_over_quota_is_403_with_the_numbers_in_it(create):
    quota.set_limits(PROJECT, {"instances": 2, "cores": 3})
    assert create(min_count=2).status_code == 202
    assert said(create(), 403) == "Quota exceeded for instances: Requested 1, but already used 2 of 2 instances"
    quota.set_limits(PROJECT, {"instances": 10})
    assert said(create(min_count=2), 403) == "Quota exceeded for cores: Requested 2, but already used 2 of 3 cores"
    assert InstanceMapping.objects.count() == 2


def test_too_many_metadata_keys_are_403(create):
    quota.set_limits(PROJECT, {"metadata_items": 1})
    assert create(metadata={"a": "b"}).status_code == 202
    assert said(create(metadata={"a": "b", "c": "d"}), 403) == "Maximum number of metadata items exceeds 1"


def test_several_servers_are_numbered_and_share_a_reservation(create, api):
    answer = create(name="web", min_count=3, hostname="www", return_reservation_id=True)
    assert answer.status_code == 202
    reservation = answer.json()["reservation_id"]
    assert reservation.startswith("r-")
    listed = api.get(f"/servers/detail?reservation_id={reservation}&sort_key=display_name&sort_dir=asc").json()
    assert [s["name"] for s in listed["servers"]] == ["web-1", "web-2", "web-3"]
    assert [s["OS-EXT-SRV-ATTR:hostname"] for s in listed["servers"]] == ["www-1", "www-2", "www-3"]


def test_a_reservation_of_servers_that_are_placed_already_is_named_too(create, cloud):
    answer = create(min_count="2", max_count="2", return_reservation_id="true")
    assert answer.json()["reservation_id"].startswith("r-")
    cloud.work()
    assert {cloud.row(m.pk).reservation_id for m in InstanceMapping.objects.all()} == {answer.json()["reservation_id"]}


def test_a_host_is_the_admins_to_name(create, cloud, admin):
    for asked in ({"availability_zone": "nova:host2"}, {"availability_zone": "nova:host2:host2"}, {"host": "host2"}):
        assert said(create(**asked), 403).startswith("Policy doesn't allow")
        server_id = create(client=admin, **asked).json()["server"]["id"]
        cloud.work()
        assert cloud.row(server_id).host == "host2"
    assert said(create(client=admin, host="host9")) == "Compute host host9 could not be found."
    assert "exclude each other" in said(create(client=admin, availability_zone="nova:host1", host="host2"))


def test_a_reader_may_not_create(create, reader):
    answer = create(client=reader)
    assert said(answer, 403) == "Policy doesn't allow os_compute_api:servers:create to be performed."


def test_a_token_without_project_cannot_create(create, cells):
    from tests.conftest import client

    assert create(client=client("admin", project="")).status_code == 403


def test_of_many_servers_as_many_are_made_as_the_quota_lets(api, cloud):
    quota.set_limits(PROJECT, {"instances": 3})
    body = cloud.body("a", min_count=1, max_count=5)
    assert api.send("post", "/servers", body).status_code == 202
    assert len(api.get("/servers").json()["servers"]) == 3

    refused = api.send("post", "/servers", cloud.body("b", min_count=2, max_count=5))
    assert refused.status_code == 403
    assert refused.json()["forbidden"]["message"] == (
        "Quota exceeded for instances: Requested 2, but already used 3 of 3 instances"
    )
