"""Users of a cloud where hosts drain: boots go elsewhere, requests for servers there are accepted and wait."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import drain
from compute.models import Service
from tests.flow import stories

KEY = "stillwater:drain"


@pytest.fixture
def ask(admin):
    """`ask("host1", {})`: drain it; `ask("host1", None)`: take work again."""

    def ask(host, wanted):
        (found,) = admin.get(f"/os-services?host={host}").json()["services"]
        answer = admin.send("put", f"/os-services/{found['id']}", {KEY: wanted})
        assert answer.status_code == 200, answer.content
        return answer.json()["service"]

    return ask


def fault(api, server_id):
    server = api.get(f"/servers/{server_id}").json()["server"]
    assert server["status"] == "ERROR"
    return server["fault"]["message"]


def test_boots_go_to_the_hosts_that_do_not_drain(api, cloud, ask):
    ask("host1", {"reason": "new kernel"})
    assert {cloud.row(cloud.boot(api, f"s{n}")).host for n in range(4)} == {"host2"}

    ask("host1", None)
    ask("host2", {})
    assert cloud.row(cloud.boot(api, "last")).host == "host1"


def test_a_boot_while_every_host_drains_says_so(api, cloud, ask):
    for host in cloud.hosts:
        ask(host, {})
    server_id = cloud.boot(api)
    assert fault(api, server_id) == "No valid host was found. No host passed the filter for: not draining."
    assert set(cloud.used().values()) == {(0, 0)}


def test_a_boot_on_a_draining_host_of_ones_own_choice_names_the_reason(admin, cloud, ask):
    ask("host1", {})
    refused = cloud.boot(admin, availability_zone="nova:host1")
    assert fault(admin, refused) == "No valid host was found. No host passed the filter for: not draining."
    assert cloud.row(cloud.boot(admin, availability_zone="nova:host2")).host == "host2"


def test_requests_for_servers_on_a_draining_host_are_accepted_and_wait(api, admin, cloud, ask):
    ask("host2", {})
    server_id = cloud.boot(api)
    ask("host2", None)
    ask("host1", {"reason": "new kernel"})

    assert stories.act(api, server_id, {"os-stop": None}).status_code == 202
    assert stories.states(cloud, server_id) == ("active", "powering-off")
    (shown,) = admin.get("/os-services?host=host1").json()["services"]
    assert shown[KEY]["waiting"] == 1
    with target_cell(cloud.cells["cell1"]):
        assert drain.operations(Service.objects.get(host="host1")) == []  # the drain does not wait for it

    ask("host1", None)
    cloud.work()
    assert stories.states(cloud, server_id) == ("stopped", None)
    stories.settled(cloud)
