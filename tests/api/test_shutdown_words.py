"""shutdown_type, shutdown_timeout and a server's own grace period on the wire: what is taken, and what is a 400."""

from __future__ import annotations

import pytest

from cells.models import BuildRequest
from compute.contract import validation
from compute.models import Flavor, Quota
from compute.shutdown import options
from tests.api.servers import server
from tests.conftest import PROJECT, client
from tests.flow import one_host, stories
from tests.flow.stories import act, message

BODIES = {"os-stop": {}, "rescue": {}, "resize": {"flavorRef": "2"}, "shelve": {}, "migrate": {}}
SECONDS = "It is a whole number from 0 to 86400."
WRONG = [
    ({"shutdown_type": "GENTLE"}, "field/attribute shutdown_type. Value: GENTLE. It is HARD or SOFT."),
    ({"shutdown_type": ""}, "field/attribute shutdown_type. Value: . It is HARD or SOFT."),
    ({"shutdown_type": "HARD\n"}, "It is HARD or SOFT."),
    ({"shutdown_type": "HARDER"}, "It is HARD or SOFT."),
    ({"shutdown_type": None}, "field/attribute shutdown_type. Value: None."),
    ({"shutdown_type": 0}, "field/attribute shutdown_type. Value: 0."),
    ({"shutdown_type": ["HARD"]}, "field/attribute shutdown_type. Value: ['HARD']."),
    ({"shutdown_timeout": -1}, f"field/attribute shutdown_timeout. Value: -1. {SECONDS}"),
    ({"shutdown_timeout": 86401}, f"field/attribute shutdown_timeout. Value: 86401. {SECONDS}"),
    ({"shutdown_timeout": "86401"}, f"field/attribute shutdown_timeout. Value: 86401. {SECONDS}"),
    ({"shutdown_timeout": 10**30}, SECONDS),
    ({"shutdown_timeout": "1e3"}, SECONDS),
    ({"shutdown_timeout": " 5"}, SECONDS),
    ({"shutdown_timeout": "5\n"}, SECONDS),
    ({"shutdown_timeout": "\u0665"}, SECONDS),
    ({"shutdown_timeout": ""}, SECONDS),
    ({"shutdown_timeout": 1.5}, SECONDS),
    ({"shutdown_timeout": True}, SECONDS),
    ({"shutdown_timeout": None}, SECONDS),
    ({"shutdown_timeout": {}}, SECONDS),
    ({"shutdown_type": "hard", "shutdown_timeout": 1}, "HARD is a shutdown_timeout of 0"),
    ({"shutdown_type": "HARD", "shutdown_timeout": "30"}, "HARD is a shutdown_timeout of 0"),
]
RIGHT = [
    ({}, None), ({"shutdown_type": "HARD"}, 0), ({"shutdown_type": "hard"}, 0), ({"shutdown_type": "hArD"}, 0),
    ({"shutdown_type": "SOFT"}, None), ({"shutdown_type": "soft"}, None), ({"shutdown_timeout": 0}, 0),
    ({"shutdown_timeout": "0030"}, 30), ({"shutdown_timeout": 86400}, 86400), ({"shutdown_timeout": "86400"}, 86400),
    ({"shutdown_type": "SOFT", "shutdown_timeout": 5}, 5), ({"shutdown_type": "HARD", "shutdown_timeout": 0}, 0),
]  # fmt: skip


@pytest.fixture
def manager(cells):
    """Who may also migrate."""
    return client("manager", "member")


@pytest.fixture
def large(cloud):
    """A larger flavor."""
    return Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=1, memory_mb=1024, disk_gb=2)


@pytest.mark.parametrize("version", ["2.1", "2.55", "2.56", "2.96"])
@pytest.mark.parametrize("key", BODIES)
def test_words_that_mean_nothing_are_refused_by_every_action_at_every_microversion(
    key, version, manager, cloud, large
):
    server_id = one_host.booted(manager, cloud)
    for words, text in WRONG:
        answer = act(manager, server_id, {key: BODIES[key] | words}, version)
        assert (answer.status_code, list(answer.json())) == (400, ["badRequest"]), words
        assert text in message(answer)
        assert answer.json()["badRequest"]["code"] == 400
    assert stories.states(cloud, server_id) == ("active", None)
    assert [done.action for done in cloud.history(server_id)] == ["create"]


@pytest.mark.parametrize(("words", "seconds"), RIGHT, ids=str)
def test_words_that_mean_something_say_how_long(words, seconds):
    checked = validation.check(words, options.add_to_schema({"type": "object", "additionalProperties": False}))
    assert options.asked(checked) == seconds


@pytest.mark.parametrize("version", ["2.1", "2.96"])
@pytest.mark.parametrize("key", BODIES)
def test_words_reach_the_journal_from_every_action(key, version, manager, cloud, large):
    for words, seconds in (({"shutdown_type": "hard"}, 0), ({"shutdown_type": "SOFT", "shutdown_timeout": "5"}, 5)):
        server_id = one_host.booted(manager, cloud)
        answer = act(manager, server_id, {key: BODIES[key] | words}, version)
        assert answer.status_code == (200 if key == "rescue" else 202), answer.content
        assert cloud.history(server_id)[-1].params["shutdown_timeout"] == seconds


@pytest.mark.parametrize(("key", "values"), [
    ("os-stop", (None, {}, "", [], "anything", {"more": 1})), ("shelve", (None, {}, "", [])),
    ("migrate", (None, {}, "", [])), ("rescue", (None, {}, {"adminPass": "x"})),
])  # fmt: skip
def test_what_clients_of_nova_send_is_taken_as_ever(key, values, manager, cloud):
    for value in values:
        server_id = one_host.booted(manager, cloud)
        answer = act(manager, server_id, {key: value}, "2.1")
        assert answer.status_code == (200 if key == "rescue" else 202), (value, answer.content)
        assert "shutdown_timeout" not in cloud.history(server_id)[-1].params


def test_closed_bodies_stay_closed(manager, cloud, large):
    server_id = one_host.booted(manager, cloud)
    for key in ("rescue", "resize", "migrate"):
        answer = act(manager, server_id, {key: BODIES[key] | {"shutdown-type": "HARD"}})
        text = "Additional properties are not allowed ('shutdown-type' was unexpected)"
        assert (answer.status_code, message(answer)) == (400, text)


def test_a_resize_takes_the_flavor_as_the_spec_calls_it(api, cloud, large):
    server_id = one_host.booted(api, cloud)
    for body, text in [
        ({"shutdown_type": "HARD"}, "'flavorRef' is a required property"),
        ({"flavor_id": "2", "flavorRef": "2"}, "say one of them"), ({"flavor_id": None}, "flavor_id"),
        ({"flavor_id": "nope"}, "Flavor nope could not be found."),
    ]:  # fmt: skip
        answer = act(api, server_id, {"resize": body})
        assert (answer.status_code, text in message(answer)) == (400, True), answer.content
    one_host.done(api, cloud, server_id, {"resize": {"shutdown_type": "HARD", "flavor_id": "2"}})
    assert (cloud.row(server_id).vm_state, cloud.row(server_id).flavor_id) == ("resized", "2")


def test_a_delete_takes_them_in_its_query_and_refuses_what_means_nothing(api, cloud):
    server_id = cloud.boot(api)
    for query, text in [
        ("shutdown_type=GENTLE", "query parameters shutdown_type. Value: GENTLE. It is HARD or SOFT."),
        ("shutdown_type=", "It is HARD or SOFT."), ("shutdown_timeout=", SECONDS), ("shutdown_timeout=x", SECONDS),
        ("shutdown_timeout=-1", SECONDS), ("shutdown_timeout=86401", SECONDS), ("shutdown_timeout=1.0", SECONDS),
        ("shutdown_type=HARD&shutdown_timeout=3", "HARD is a shutdown_timeout of 0"),
    ]:  # fmt: skip
        answer = api.delete(f"/servers/{server_id}?{query}")
        assert (answer.status_code, list(answer.json())) == (400, ["badRequest"])
        assert text in message(answer)
    assert api.delete("/servers/nope?shutdown_type=GENTLE").status_code == 400
    assert stories.states(cloud, server_id) == ("active", None)
    assert api.delete(f"/servers/{server_id}?shutdown_type=soft&shutdown_timeout=7&other=1").status_code == 204
    assert cloud.history(server_id)[-1].params["shutdown_timeout"] == 7


# -- the server's own


OWN = "termination_grace_period_seconds"
BAD = [(OWN, value) for value in (-1, 86401, "86401", "ten", "", " 5", 1.5, True, [], {})]
BAD += [("shutdown_priority", value) for value in (-1001, 1001, "1001", "high", "", False, 0.5)]


def test_a_server_is_created_with_a_grace_period_of_its_own(api, cloud):
    for value, kept in ((30, "30"), ("0045", "45"), (0, "0"), (86400, "86400")):
        server_id = cloud.boot(api, metadata={"a": "b"}, **{OWN: value, "shutdown_priority": -5})
        shown = api.get(f"/servers/{server_id}").json()["server"]
        assert shown["metadata"] == {"a": "b", OWN: kept, "shutdown_priority": "-5"}
        assert OWN not in shown
    server_id = cloud.boot(api, metadata={OWN: "12"})  # openstack server create --property
    assert cloud.row(server_id).metadata == {OWN: "12"}
    server_id = cloud.boot(api, metadata={OWN: "12"}, **{OWN: 13})
    assert cloud.row(server_id).metadata == {OWN: "13"}
    server_id = cloud.boot(api, **{OWN: None})
    assert cloud.row(server_id).metadata == {}


@pytest.mark.parametrize("version", ["2.1", "2.96"])
def test_a_create_with_one_that_means_nothing_is_refused(version, api, cloud):
    for key, value in BAD:
        answer = api.send("post", "/servers", cloud.body(**{key: value}), version=version)
        least, most = (0, 86400) if key == OWN else (-1000, 1000)
        text = f"Invalid input for field/attribute {key}. Value: {value}. It is a whole number from {least} to {most}."
        assert (answer.status_code, message(answer)) == (400, text)
        if isinstance(value, str):
            again = api.send("post", "/servers", cloud.body(metadata={key: value}), version=version)
            assert (again.status_code, message(again)) == (400, text)
    assert not BuildRequest.objects.exists()


def test_a_server_gets_and_loses_one_by_an_update(api, cells):
    path = f"/servers/{server(cells['cell1'], metadata={'a': '1'})}"

    def put(**changes):
        return api.send("put", path, {"server": changes})

    assert put(**{OWN: 30, "name": "n"}).json()["server"]["metadata"] == {"a": "1", OWN: "30"}
    assert api.get(path).json()["server"]["name"] == "n"
    assert put(**{OWN: "40", "shutdown_priority": 3}).json()["server"]["metadata"] == {
        "a": "1", OWN: "40", "shutdown_priority": "3",
    }  # fmt: skip
    assert put(**{OWN: None}).json()["server"]["metadata"] == {"a": "1", "shutdown_priority": "3"}
    for key, value in BAD:
        assert (put(**{key: value}).status_code, put(name="x", **{key: value}).status_code) == (400, 400)
    assert api.get(path).json()["server"]["name"] == "n"
    assert api.delete(f"{path}/metadata/shutdown_priority").status_code == 204
    assert api.get(path).json()["server"]["metadata"] == {"a": "1"}


def test_metadata_that_means_nothing_is_refused_wherever_it_is_written(api, cells):
    path = f"/servers/{server(cells['cell1'], metadata={OWN: '5'})}"
    for key, value in BAD:
        if isinstance(value, str):
            for method, where, body in (
                ("post", "/metadata", {"metadata": {key: value}}), ("put", "/metadata", {"metadata": {key: value}}),
                ("put", f"/metadata/{key}", {"meta": {key: value}}),
            ):  # fmt: skip
                answer = api.send(method, f"{path}{where}", body)
                assert answer.status_code == 400
                assert f"field/attribute {key}. Value: {value}. It is a whole number" in message(answer)
    assert api.get(f"{path}/metadata").json() == {"metadata": {OWN: "5"}}
    assert api.send("put", f"{path}/metadata/{OWN}", {"meta": {OWN: "6"}}).status_code == 200
    assert api.send("post", f"{path}/metadata", {"metadata": {"b": "x"}}).json()["metadata"] == {OWN: "6", "b": "x"}


def test_a_rebuild_checks_new_metadata_too(api, cloud):
    server_id = cloud.boot(api)
    for metadata, status in (({OWN: "x"}, 400), ({"shutdown_priority": "1001"}, 400), ({OWN: "9"}, 202)):
        body = {"imageRef": cloud.image.id, "metadata": metadata}
        assert act(api, server_id, {"rebuild": body}).status_code == status
    cloud.work()
    assert cloud.row(server_id).metadata == {OWN: "9"}


def test_an_image_may_have_any_metadata(api, cloud):
    server_id = cloud.boot(api)
    body = {"createImage": {"name": "snap", "metadata": {OWN: "as long as it takes"}}}
    assert act(api, server_id, body).status_code == 202


def test_an_update_of_it_minds_locks_and_the_quota_of_metadata(api, admin, reader, cells):
    server_id = server(cells["cell1"], metadata={"a": "1"}, vm_state="error")
    path = f"/servers/{server_id}"
    grace = {"server": {OWN: 30}}
    assert reader.send("put", path, grace).status_code == 403
    Quota.objects.create(project_id=PROJECT, resource="metadata_items", limit=1)
    assert api.send("put", path, grace).status_code == 403
    Quota.objects.all().delete()
    assert api.send("put", path, grace).status_code == 200  # also of a server in ERROR
    assert act(api, server_id, {"lock": None}).status_code == 202
    answer = api.send("put", path, {"server": {OWN: None}})
    assert (answer.status_code, message(answer)) == (409, f"Instance {server_id} is locked")
    assert admin.send("put", path, {"server": {OWN: None}}).status_code == 200
