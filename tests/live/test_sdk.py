"""openstacksdk and novaclient, as libraries: waiting, paging, negotiation, every verb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NAMES = [f"page-{number}" for number in range(5)]
WAIT = {"wait": 60, "interval": 0.2}


@pytest.fixture(scope="module")
def sdk(fake_cloud: Cloud) -> Any:
    """As demo."""
    return fake_cloud.sdk()


@pytest.fixture(scope="module")
def five(sdk: Any) -> Iterator[list[Any]]:
    """Five servers over both cells, the oldest first."""
    boot = {"image_id": sdk.image.find_image("micro").id, "flavor_id": "42", "networks": "none"}
    made = [sdk.compute.create_server(name=name, tags=["paged"], **boot) for name in NAMES]
    yield [sdk.compute.wait_for_server(server, **WAIT) for server in made]
    for server in made:
        sdk.compute.delete_server(server)
    for server in made:
        sdk.compute.wait_for_delete(server, **WAIT)


@pytest.fixture(scope="module")
def nova(fake_cloud: Cloud) -> Any:
    """novaclient, at the newest microversion it shares with us."""
    from novaclient import client

    return client.Client("2.96", session=fake_cloud.sdk().session)


def test_create_and_wait_by_names_alone(sdk):
    server = sdk.create_server("quick", image="micro", flavor="m1.nano", wait=True, timeout=60)
    assert server.status == "ACTIVE"
    assert sdk.get_server("quick").id == server.id
    assert sdk.delete_server("quick", wait=True, timeout=60)
    assert sdk.get_server("quick") is None


def test_a_page_holds_what_was_asked_and_the_next_one_goes_on(fake_cloud, sdk, five):
    newest_first = NAMES[::-1]
    assert [server.name for server in sdk.compute.servers(limit=2, tags="paged")] == newest_first

    url, names = "/servers?limit=2&tags=paged&sort_key=display_name&sort_dir=asc", []
    pages = 0
    while url:
        body = sdk.compute.get(url, microversion="2.96").json()
        assert len(body["servers"]) <= 2
        names += [server["name"] for server in body["servers"]]
        url, pages = next((link["href"] for link in body.get("servers_links", [])), None), pages + 1
    assert names == NAMES
    assert pages == 3
    assert {row.cell for row in books.rows(fake_cloud) if row.name in NAMES} == {"cell1", "cell2"}


def test_lists_are_filtered(sdk, five):
    assert [server.name for server in sdk.compute.servers(name="^page-3$")] == ["page-3"]
    assert list(sdk.compute.servers(status="SHUTOFF", tags="paged")) == []
    assert len(list(sdk.compute.servers(details=False, status="ACTIVE", tags="paged"))) == 5
    after = sdk.compute.servers(limit=1, marker=five[1].id, tags="paged")
    assert [server.id for server in after] == [five[0].id]


def test_every_verb_of_a_server(sdk, five):
    compute, server = sdk.compute, five[0]
    verbs = [
        (compute.stop_server, "SHUTOFF"), (compute.start_server, "ACTIVE"),
        (compute.pause_server, "PAUSED"), (compute.unpause_server, "ACTIVE"),
        (compute.suspend_server, "SUSPENDED"), (compute.resume_server, "ACTIVE"),
    ]  # fmt: skip
    for verb, status in verbs:
        verb(server)
        server = compute.wait_for_server(server, status=status, **WAIT)
    for kind in ("SOFT", "HARD"):
        compute.reboot_server(server, kind)
        server = compute.wait_for_server(server, status="ACTIVE", **WAIT)
        eventually("idle", lambda: compute.get_server(five[0]).task_state is None, 30)
    compute.lock_server(server, locked_reason="mine")
    assert compute.get_server(server).is_locked
    compute.unlock_server(server)
    compute.set_server_metadata(server, role="web")
    assert compute.get_server_metadata(server).metadata == {"role": "web"}
    compute.add_tag_to_server(server, "one")
    assert compute.get_server(server).tags == ["paged", "one"]
    compute.update_server(server, name="page-zero", description="renamed")
    assert compute.get_server(server).description == "renamed"
    compute.update_server(server, name=NAMES[0])
    assert "output" in compute.get_server_console_output(server)
    assert [action.action for action in compute.server_actions(server)][-1] == "create"


def test_an_image_of_a_server_is_there_when_it_is_waited_for(sdk, five):
    image = sdk.compute.create_server_image(five[1], "sdk-copy", wait=True, timeout=60)
    assert (image.status, image.name) == ("active", "sdk-copy")
    sdk.image.delete_image(image)
    assert sdk.image.find_image("sdk-copy") is None


def test_microversions_are_negotiated(sdk, five):
    old = sdk.compute.get(f"/servers/{five[2].id}", microversion="2.1").json()["server"]
    new = sdk.compute.get(f"/servers/{five[2].id}", microversion="2.96").json()["server"]
    assert old["flavor"]["id"] == "42"
    assert new["flavor"]["original_name"] == "m1.nano"
    assert "tags" in new
    assert "tags" not in old
    assert sdk.compute.get_endpoint_data().max_microversion == (2, 96)
    answer = sdk.compute.get("/servers", microversion="2.42")
    assert answer.headers["OpenStack-API-Version"] == "compute 2.42"


def test_refusals_are_exceptions_with_our_words(sdk, five):
    from openstack import exceptions

    with pytest.raises(exceptions.ConflictException, match=f"Cannot 'start' instance {five[3].id}"):
        sdk.compute.start_server(five[3])
    with pytest.raises(exceptions.NotFoundException, match="could not be found"):
        sdk.compute.get_server("11111111-2222-4333-8444-555555555555")


def test_novaclient_boots_and_ends_a_server(nova, sdk):
    image, flavor = sdk.image.find_image("micro"), nova.flavors.find(name="m1.nano")
    server = nova.servers.create("nova", image.id, flavor, nics="none", meta={"by": "novaclient"})
    eventually("ACTIVE", lambda: nova.servers.get(server.id).status == "ACTIVE", 60)
    assert [found.id for found in nova.servers.list(search_opts={"name": "^nova$"})] == [server.id]
    server.reboot("HARD")
    eventually("rebooted", lambda: idle(nova, server.id), 60)
    actions = nova.instance_action.list(server.id)
    assert [action.action for action in actions] == ["reboot", "create"]
    details = nova.instance_action.get(server.id, actions[0].request_id)
    assert details.events[0]["result"] == "Success"
    server.delete()
    eventually("deleted", lambda: not nova.servers.list(search_opts={"name": "^nova$"}), 60)


def test_novaclient_sees_limits_and_refusals(nova):
    from novaclient import exceptions

    assert {limit.name: limit.value for limit in nova.limits.get().absolute}["maxTotalInstances"] > 0
    with pytest.raises(exceptions.NotFound, match="could not be found"):
        nova.servers.get("11111111-2222-4333-8444-555555555555")
    with pytest.raises(exceptions.Forbidden):
        nova.services.list()


def idle(nova: Any, uuid: str) -> bool:
    """Nothing is going on with it."""
    server = nova.servers.get(uuid)
    return server.status == "ACTIVE" and getattr(server, "OS-EXT-STS:task_state") is None
