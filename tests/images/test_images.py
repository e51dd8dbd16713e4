"""An image's life through the API, and who may do what with it."""

from __future__ import annotations

import pytest

from cloud.images.models import Image

pytestmark = [pytest.mark.django_db(databases=["default"]), pytest.mark.urls("tests.identity.urls")]
IMAGES = "/image/v2/images"
PATCH_TYPE = "application/openstack-images-v2.1-json-patch"


def create(client, name="cirros", **fields):
    body = {"name": name, "disk_format": "raw", "container_format": "bare"} | fields
    answer = client.post(IMAGES, body, format="json")
    assert answer.status_code == 201, answer.content
    return answer.json()


def patch(client, image, *operations):
    import json

    return client.patch(f"{IMAGES}/{image['id']}", json.dumps(operations), content_type=PATCH_TYPE)


def fill(client, image, content=b"x" * 100):
    url = f"{IMAGES}/{image['id']}/file"
    return client.put(url, content, content_type="application/octet-stream")


def test_discovery(anonymous, settings):
    for url in ("/image", "/image/"):
        answer = anonymous.get(url)
        assert answer.status_code == 300
        assert answer.json()["versions"][0]["links"][0]["href"] == f"{settings.PUBLIC_URL}/image/v2/"
    assert anonymous.get("/image/versions").status_code == 200


def test_documents(demo):
    assert demo.get("/image/v2/schemas/image").json()["name"] == "image"
    assert demo.get("/image/v2/schemas/images").json()["name"] == "images"
    assert demo.get("/image/v2/info/import").json()["import-methods"]["value"] == []
    missing = demo.get("/image/v2/info/stores")
    assert missing.status_code == 404
    assert missing.json()["itemNotFound"]["code"] == 404


def test_create_fill_show_fetch_delete(demo, people, images_folder):
    image = create(
        demo, hw_disk_bus="scsi", os_shutdown_timeout="30", **{"owner_specified.openstack.md5": ""}
    )
    assert (image["status"], image["visibility"], image["owner"]) == (
        "queued",
        "shared",
        people.projects["demo"].id,
    )
    assert (image["hw_disk_bus"], image["os_shutdown_timeout"]) == ("scsi", "30")
    assert demo.get(f"{IMAGES}/{image['id']}/file").status_code == 204
    assert fill(demo, image).status_code == 204
    shown = demo.get(f"{IMAGES}/{image['id']}").json()
    assert (shown["status"], shown["size"], shown["virtual_size"]) == ("active", 100, 100)
    assert (shown["os_hash_algo"], len(shown["os_hash_value"]), len(shown["checksum"])) == ("sha512", 128, 32)
    fetched = demo.get(f"{IMAGES}/{image['id']}/file")
    assert b"".join(fetched.streaming_content) == b"x" * 100
    assert fetched["Content-MD5"] == shown["checksum"]
    assert fetched["Content-Length"] == "100"
    same = demo.get(f"{IMAGES}/{image['id']}/file", headers={"If-None-Match": fetched["ETag"]})
    assert same.status_code == 304
    assert fill(demo, image).status_code == 409
    assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}").status_code == 404
    assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 404
    assert list(images_folder.iterdir()) == []


@pytest.mark.parametrize("visibility", ["private", "shared"])
def test_another_projects_image_is_not_there(people, demo, visibility):
    image = create(demo, visibility=visibility)
    fill(demo, image)
    other = people.client("other")
    url = f"{IMAGES}/{image['id']}"
    assert other.get(url).status_code == 404
    assert other.get(f"{url}/file").status_code == 404
    assert other.delete(url).status_code == 404
    assert patch(other, image, {"op": "replace", "path": "/name", "value": "mine"}).status_code == 404
    assert fill(other, image).status_code == 404
    assert other.put(f"{url}/tags/x").status_code == 404
    assert other.get(IMAGES).json()["images"] == []
    assert people.client("admin").get(url).status_code == 200


def test_public_images_are_made_by_admins_and_changed_by_nobody_else(people, demo, admin):
    body = {"name": "x", "visibility": "public"}
    assert demo.post(IMAGES, body, format="json").status_code == 403
    mine = create(demo)
    assert patch(demo, mine, {"op": "replace", "path": "/visibility", "value": "public"}).status_code == 403
    image = create(admin, visibility="public")
    assert fill(admin, image).status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}/file").status_code == 200
    assert patch(demo, image, {"op": "replace", "path": "/name", "value": "x"}).status_code == 403
    assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 403
    assert demo.put(f"{IMAGES}/{image['id']}/tags/x").status_code == 403


def test_community_images_are_found_by_asking(people, demo):
    image = create(demo, visibility="community")
    other = people.client("other")
    assert other.get(IMAGES).json()["images"] == []
    assert [one["id"] for one in other.get(f"{IMAGES}?visibility=community").json()["images"]] == [
        image["id"]
    ]
    assert other.get(f"{IMAGES}/{image['id']}").status_code == 200


def test_readers_look_and_do_not_touch(people, demo):
    image = create(demo)
    reader = people.client("reader")
    assert reader.get(f"{IMAGES}/{image['id']}").status_code == 200
    assert reader.post(IMAGES, {"name": "x"}, format="json").status_code == 403
    assert reader.delete(f"{IMAGES}/{image['id']}").status_code == 403
    assert reader.get(f"{IMAGES}/{image['id']}/file").status_code == 403
    assert fill(reader, image).status_code == 403


def test_without_token_401(anonymous, people, demo):
    image = create(demo)
    for url in (IMAGES, f"{IMAGES}/{image['id']}", f"{IMAGES}/{image['id']}/file"):
        answer = anonymous.get(url)
        assert answer.status_code == 401
        assert answer["WWW-Authenticate"].startswith("Keystone")
    assert fill(anonymous, image).status_code == 401


def test_owner_is_for_admins_to_set(people, demo, admin):
    assert (
        demo.post(IMAGES, {"name": "x", "owner": people.projects["other"].id}, format="json").status_code
        == 403
    )
    assert create(admin, owner=people.projects["other"].id)["owner"] == people.projects["other"].id


def test_protected_images_stay(demo):
    image = create(demo, protected=True)
    assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 403
    assert patch(demo, image, {"op": "replace", "path": "/protected", "value": False}).status_code == 200
    assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 204


def test_patching_fields_properties_and_tags(demo):
    image = create(demo, hw_disk_bus="scsi", tags=["b"])
    answer = patch(
        demo, image,
        {"op": "replace", "path": "/name", "value": "new"},
        {"op": "add", "path": "/os_type", "value": "linux"},
        {"op": "remove", "path": "/hw_disk_bus"},
        {"op": "add", "path": "/a~1b~0c", "value": "escaped"},
        {"op": "replace", "path": "/min_ram", "value": 512},
        {"op": "add", "path": "/tags/-", "value": "c"},
        {"op": "add", "path": "/tags/0", "value": "a"},
    )  # fmt: skip
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["name"], shown["os_type"], shown["a/b~c"], shown["min_ram"]) == (
        "new",
        "linux",
        "escaped",
        512,
    )
    assert shown["tags"] == ["a", "b", "c"]
    assert "hw_disk_bus" not in shown
    assert patch(demo, image, {"op": "remove", "path": "/tags/1"}).json()["tags"] == ["a", "c"]
    assert patch(demo, image, {"op": "replace", "path": "/tags", "value": []}).json()["tags"] == []


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        ({"op": "replace", "path": "/status", "value": "active"}, 403),
        ({"op": "replace", "path": "/checksum", "value": "0"}, 403),
        ({"op": "add", "path": "/size", "value": 1}, 403),
        ({"op": "replace", "path": "/id", "value": "x"}, 403),
        ({"op": "remove", "path": "/name"}, 403),
        ({"op": "remove", "path": "/nothing"}, 409),
        ({"op": "replace", "path": "/nothing", "value": "x"}, 409),
        ({"op": "replace", "path": "/name", "value": 5}, 400),
        ({"op": "replace", "path": "/min_ram", "value": "5"}, 400),
        ({"op": "replace", "path": "/min_ram", "value": -1}, 400),
        ({"op": "replace", "path": "/min_ram", "value": 1 << 40}, 400),
        ({"op": "replace", "path": "/protected", "value": None}, 400),
        ({"op": "replace", "path": "/tags", "value": "x"}, 400),
        ({"op": "replace", "path": "/tags", "value": [["x"]]}, 400),
        ({"op": "add", "path": "/tags/x", "value": "x"}, 400),
        ({"op": "add", "path": "/tags/9", "value": "x"}, 400),
        ({"op": "remove", "path": "/tags/0"}, 409),
        ({"op": "add", "path": "/prop", "value": {"a": 1}}, 400),
        ({"op": "add", "path": "/prop", "value": 5}, 400),
        ({"op": "add", "path": "/prop/deep", "value": "x"}, 400),
        ({"op": "add", "path": "/", "value": "x"}, 400),
        ({"op": "add", "path": "name", "value": "x"}, 400),
        ({"op": "add", "path": "/name"}, 400),
        ({"op": "test", "path": "/name", "value": "x"}, 400),
        ({"op": "add", "path": 5, "value": "x"}, 400),
        ({"path": "/name", "value": "x"}, 400),
        ("add", 400),
    ],
)
def test_patches_that_are_refused(demo, operation, status):
    image = create(demo)
    good = {"op": "replace", "path": "/name", "value": "changed"}
    assert patch(demo, image, good, operation).status_code == status
    assert Image.objects.get(pk=image["id"]).name == "cirros"


def test_patch_takes_its_own_content_type_only(demo):
    image = create(demo)
    answer = demo.patch(f"{IMAGES}/{image['id']}", [], format="json")
    assert answer.status_code == 415


def test_formats_are_fixed_once_there_is_content(demo):
    image = create(demo)
    fill(demo, image)
    change = {"op": "replace", "path": "/disk_format", "value": "qcow2"}
    assert patch(demo, image, change).status_code == 403


@pytest.mark.parametrize(
    "fields",
    [
        [], 5, "x", {"name": 5}, {"name": "x" * 256}, {"name": "a\0b"}, {"visibility": "everybody"},
        {"disk_format": "doc"}, {"min_ram": "1"}, {"min_ram": True}, {"min_disk": -1}, {"protected": "yes"},
        {"tags": "x"}, {"tags": [1]}, {"tags": ["x"] * 200}, {"hw": 5}, {"hw": None}, {"hw": ["x"]},
        {"id": "../../etc/passwd"}, {"id": "x"}, {"": "x"}, {"id": 5},
    ],
)  # fmt: skip
def test_wrong_types_are_400(demo, fields):
    assert demo.post(IMAGES, fields, format="json").status_code == 400
    assert not Image.objects.exists()


@pytest.mark.parametrize(
    "field", ["status", "checksum", "size", "created_at", "self", "file", "os_hash_value"]
)
def test_read_only_fields_are_403(demo, field):
    assert demo.post(IMAGES, {"name": "x", field: "active"}, format="json").status_code == 403


def test_an_id_of_ones_own_is_taken_once(demo):
    own = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
    assert create(demo, id=own)["id"] == own
    assert demo.post(IMAGES, {"name": "x", "id": own}, format="json").status_code == 409
    demo.delete(f"{IMAGES}/{own}")
    assert demo.post(IMAGES, {"name": "x", "id": own}, format="json").status_code == 409


def test_too_many_properties_are_413(demo):
    body = {f"p{number}": "x" for number in range(129)}
    assert demo.post(IMAGES, body, format="json").status_code == 413


@pytest.mark.parametrize(
    "image_id", ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "a%00b", "x" * 300]
)
def test_ids_that_are_paths_find_nothing(demo, image_id):
    for url in (f"{IMAGES}/{image_id}", f"{IMAGES}/{image_id}/file"):
        assert demo.get(url).status_code in (400, 404)
        assert demo.put(url, b"x", content_type="application/octet-stream").status_code in (400, 404, 405)


def test_tags(demo):
    image = create(demo)
    url = f"{IMAGES}/{image['id']}/tags"
    assert demo.put(f"{url}/blue").status_code == 204
    assert demo.put(f"{url}/blue").status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}").json()["tags"] == ["blue"]
    assert demo.delete(f"{url}/blue").status_code == 204
    assert demo.delete(f"{url}/blue").status_code == 404
    assert demo.put(f"{url}/{'x' * 256}").status_code == 400
