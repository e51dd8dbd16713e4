"""Flavors, their extra specs, and who may see private ones."""

import pytest
from django.core.management import call_command

from compute.models import Flavor
from tests.conftest import PROJECT

BIG = {"name": "big", "ram": 2048, "vcpus": 4, "disk": 20}


def make(admin, **fields):
    answer = admin.send("post", "/flavors", {"flavor": {**BIG, **fields}})
    assert answer.status_code == 200, answer.json()
    return answer.json()["flavor"]


def names(answer):
    assert answer.status_code == 200, answer.json()
    return [one["name"] for one in answer.json()["flavors"]]


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


def test_an_admin_makes_a_flavor_and_a_member_sees_it(admin, api):
    made = make(admin, id="b1", description="large")

    seen = api.get("/flavors/b1").json()["flavor"]

    assert seen == made
    assert {k: v for k, v in seen.items() if k != "links"} == {
        "id": "b1", "name": "big", "ram": 2048, "disk": 20, "swap": 0, "vcpus": 4, "rxtx_factor": 1.0,
        "OS-FLV-EXT-DATA:ephemeral": 0, "OS-FLV-DISABLED:disabled": False,
        "os-flavor-access:is_public": True, "description": "large", "extra_specs": {},
    }  # fmt: skip
    assert [one["rel"] for one in seen["links"]] == ["self", "bookmark"]


def test_fields_follow_the_microversion(admin):
    make(admin, id="b1")

    old = admin.get("/flavors/b1", version="2.1").json()["flavor"]
    described = admin.get("/flavors/b1", version="2.55").json()["flavor"]

    assert old["swap"] == ""
    assert "description" not in old
    assert described["description"] is None
    assert "extra_specs" not in described
    assert set(admin.get("/flavors", version="2.54").json()["flavors"][0]) == {"id", "name", "links"}


def test_only_admins_make_change_and_delete(api, admin):
    make(admin, id="b1")

    assert api.send("post", "/flavors", {"flavor": BIG}).status_code == 403
    assert api.send("put", "/flavors/b1", {"flavor": {"description": "x"}}).status_code == 403
    assert api.delete("/flavors/b1").status_code == 403


def test_a_taken_name_or_id_is_a_conflict(admin):
    make(admin, id="b1")

    taken_name = admin.send("post", "/flavors", {"flavor": {**BIG, "id": "b2"}})
    taken_id = admin.send("post", "/flavors", {"flavor": {**BIG, "name": "other", "id": "b1"}})

    assert message(taken_name, 409) == "Flavor with name big already exists."
    assert message(taken_id, 409) == "Flavor with ID b1 already exists."


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"ram": 0}, "Invalid input for field/attribute ram. Value: 0. 0 is less than the minimum of 1"),
        ({"vcpus": "0"}, "for field/attribute vcpus. Value: 0. 0 is less than the minimum of 1"),
        ({"disk": "99999999999"}, "is greater than the maximum of 2147483647"),
        ({"disk": -1}, "-1 is less than the minimum of 0"),
        ({"colour": "red"}, "Additional properties are not allowed ('colour' was unexpected)"),
        ({"id": " x"}, "Invalid input for field/attribute id"),
        ({"rxtx_factor": 0}, "Invalid input for field/attribute rxtx_factor"),
    ],
)
def test_a_wrong_field_is_named(admin, fields, part):
    assert part in message(admin.send("post", "/flavors", {"flavor": {**BIG, **fields}}), 400)


def test_description_is_no_field_before_2_55(admin):
    answer = admin.send("post", "/flavors", {"flavor": {**BIG, "description": "x"}}, version="2.54")
    assert "'description' was unexpected" in message(answer, 400)
    changed = admin.send("put", "/flavors/1", {"flavor": {"description": "x"}}, version="2.54")
    assert changed.status_code == 404


def test_update_and_delete(admin):
    make(admin, id="b1")

    changed = admin.send("put", "/flavors/b1", {"flavor": {"description": "new"}})
    gone = admin.delete("/flavors/b1")

    assert changed.json()["flavor"]["description"] == "new"
    assert gone.status_code == 202
    assert message(admin.get("/flavors/b1"), 404) == "Flavor b1 could not be found."
    assert admin.delete("/flavors/b1").status_code == 404


def test_filters_order_and_pages(admin, api):
    for number, ram in enumerate((512, 64, 256)):
        make(admin, id=str(number), name=f"f{number}", ram=ram, disk=number)

    assert names(api.get("/flavors?minRam=100")) == ["f0", "f2"]
    assert names(api.get("/flavors/detail?minDisk=2")) == ["f2"]
    assert names(api.get("/flavors?sort_key=memory_mb&sort_dir=desc")) == ["f0", "f2", "f1"]
    first = api.get("/flavors?limit=2")
    assert names(first) == ["f0", "f1"]
    assert "marker=1" in first.json()["flavors_links"][0]["href"]
    assert names(api.get("/flavors?limit=2&marker=1")) == ["f2"]
    assert names(api.get("/flavors?limit=0")) == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("minRam=x", "Invalid minRam filter [x]"),
        ("marker=nope", "marker [nope] not found"),
        ("limit=-1", "Invalid input for query parameters limit. Value: -1."),
        ("sort_key=colour", "Invalid input for query parameters sort_key. Value: colour."),
        ("colour=red", "Additional properties are not allowed ('colour' was unexpected)"),
    ],
)
def test_a_wrong_query_is_named(api, query, text):
    assert text in message(api.get(f"/flavors?{query}"), 400)
    assert api.get("/flavors?colour=red", version="2.74").status_code == 200


def test_a_private_flavor_is_for_those_who_were_let_in(admin, api, stranger):
    make(admin, id="p1", name="secret", **{"os-flavor-access:is_public": False})
    assert api.get("/flavors/p1").status_code == 404

    let_in = admin.send("post", "/flavors/p1/action", {"addTenantAccess": {"tenant": PROJECT}})

    assert let_in.json() == {"flavor_access": [{"flavor_id": "p1", "tenant_id": PROJECT}]}
    assert names(api.get("/flavors/detail")) == ["secret"]
    assert api.get("/flavors/p1").status_code == 200
    assert names(stranger.get("/flavors")) == []
    assert message(stranger.get("/flavors/p1"), 404) == "Flavor p1 could not be found."
    assert names(admin.get("/flavors")) == []
    assert names(admin.get("/flavors?is_public=none")) == ["secret"]
    assert names(admin.get("/flavors?is_public=False")) == ["secret"]
    assert message(admin.get("/flavors?is_public=maybe"), 400) == "Invalid is_public filter [maybe]"


def test_access_is_listed_given_once_and_taken(admin, api):
    make(admin, id="p1", name="secret", **{"os-flavor-access:is_public": False})
    make(admin, id="b1")
    body = {"addTenantAccess": {"tenant": PROJECT}}
    admin.send("post", "/flavors/p1/action", body)

    assert admin.get("/flavors/p1/os-flavor-access").json()["flavor_access"][0]["tenant_id"] == PROJECT
    assert "already exists" in message(admin.send("post", "/flavors/p1/action", body), 409)
    assert admin.send("post", "/flavors/b1/action", body).status_code == 409
    assert admin.get("/flavors/b1/os-flavor-access").status_code == 404
    assert api.get("/flavors/p1/os-flavor-access").status_code == 403
    taken = admin.send("post", "/flavors/p1/action", {"removeTenantAccess": {"tenant": PROJECT}})
    assert taken.json() == {"flavor_access": []}
    again = admin.send("post", "/flavors/p1/action", {"removeTenantAccess": {"tenant": PROJECT}})
    assert again.status_code == 404
    unknown = admin.send("post", "/flavors/p1/action", {"dance": {}})
    assert message(unknown, 400) == "There is no such action: dance"


def test_an_empty_accept_is_answered_in_json(admin):
    """The SDK sends one with actions."""
    make(admin, id="p1", name="secret", **{"os-flavor-access:is_public": False})
    body = {"addTenantAccess": {"tenant": PROJECT}}
    assert admin.send("post", "/flavors/p1/action", body, HTTP_ACCEPT="").status_code == 200


def test_extra_specs(admin, api):
    make(admin, id="b1")
    base = "/flavors/b1/os-extra_specs"

    assert admin.send("post", base, {"extra_specs": {"hw:cpu": "a", "x": "1"}}).status_code == 200
    assert admin.send("put", f"{base}/x", {"x": "2"}).json() == {"x": "2"}

    assert api.get(base).json() == {"extra_specs": {"hw:cpu": "a", "x": "2"}}
    assert api.get(f"{base}/hw:cpu").json() == {"hw:cpu": "a"}
    assert api.get("/flavors/b1", version="2.61").json()["flavor"]["extra_specs"]["x"] == "2"
    assert message(admin.send("put", f"{base}/x", {"y": "2"}), 400) == "Request body and URI mismatch"
    assert admin.delete(f"{base}/x").status_code == 200
    assert message(admin.delete(f"{base}/x"), 404) == "Flavor b1 has no extra specs with key x."
    assert admin.send("post", base, {"extra_specs": {"bad/key": "1"}}).status_code == 400
    assert api.send("post", base, {"extra_specs": {"x": "1"}}).status_code == 403


def test_seeding_twice_is_seeding_once(cells, capsys):
    call_command("flavors_seed")
    call_command("flavors_seed")

    assert list(Flavor.objects.values_list("flavor_id", "name", "memory_mb")) == [
        ("1", "m1.tiny", 128), ("2", "m1.small", 256), ("3", "m1.medium", 512), ("4", "m1.large", 2048),
        ("42", "m1.nano", 64),
    ]  # fmt: skip


def test_the_project_in_the_url_is_optional(api):
    assert api.get(f"/compute/v2.1/{PROJECT}/flavors").status_code == 200
    assert api.get("/compute/v2.1/another/flavors").status_code == 400
    assert api.get("/flavors/").status_code == 200
