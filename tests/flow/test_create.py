"""Building a server: on the first host, on the next one, or nowhere, with a reason."""

from __future__ import annotations

import pytest

from cells.models import CELL0, InstanceMapping, RequestSpec
from compute.models import Flavor
from compute.placement import quota
from compute.virt.base import HypervisorUnavailable, ImageUnusable, InsufficientResources
from tests.conftest import PROJECT, client
from tests.flow import stories

ALWAYS = -1


@pytest.fixture
def crowd(cloud):
    """Three hosts in cell1, none elsewhere; host1 is the emptiest and tried first."""
    cloud.hosts["host2"].driver.faults.fail("spawn", times=ALWAYS)
    cloud.add_host("host1b", "cell1", memory_mb=200_000)
    cloud.add_host("host1c", "cell1", memory_mb=100_000)
    _disable(cloud, "host2")
    return cloud


def test_a_boot_is_in_the_history_and_claims_what_its_flavor_says(api, cloud):
    server_id = cloud.boot(api)
    created = stories.last_action(api, server_id)
    assert (created["action"], created["message"]) == ("create", None)
    assert [(e["event"], e["result"]) for e in created["events"]] == [
        ("compute__do_build_and_run_instance", "Success")
    ]
    assert sorted(cloud.used().values()) == [(0, 0), (1, 512)]
    assert quota.usage(PROJECT) == quota.Usage(1, 1, 512)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def test_a_host_that_fails_is_followed_by_another_one_of_the_cell(api, admin, crowd):
    crowd.hosts["host1"].driver.faults.fail("spawn", error=InsufficientResources)
    server_id = crowd.boot(api)
    assert (crowd.row(server_id).host, *stories.states(crowd, server_id)) == ("host1b", "active", None)
    assert crowd.used() == {"host1": (0, 0), "host1b": (1, 512), "host1c": (0, 0), "host2": (0, 0)}
    events = stories.last_action(admin, server_id)["events"]
    assert [(e["event"], e["result"]) for e in events] == [
        ("compute__do_build_and_run_instance", "Error"),
        ("conductor_build_instances", "Success"),
        ("compute__do_build_and_run_instance", "Success"),
    ]
    assert stories.last_action(api, server_id)["message"] is None
    assert not crowd.row(server_id).fault
    stories.settled(crowd)


def test_a_boot_that_failed_on_every_host_it_may_try_is_an_error_that_says_why(api, crowd):
    for host in crowd.hosts.values():
        host.driver.faults.fail("spawn", times=ALWAYS)
    server_id = crowd.boot(api)
    server = api.get(f"/servers/{server_id}").json()["server"]
    assert server["status"] == "ERROR"
    assert server["fault"]["message"] == (
        "Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for "
        f"instance {server_id}. Last: spawn failed as injected"
    )
    assert [a for h in crowd.hosts.values() for a, _ in h.driver.calls].count("spawn") == 3
    assert set(crowd.used().values()) == {(0, 0)}
    stories.settled(crowd)
    api.delete(f"/servers/{server_id}")
    crowd.work()
    assert crowd.row(server_id).deleted
    assert quota.usage(PROJECT) == quota.Usage()


def test_a_cell_with_one_host_says_why_that_host_failed(api, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=ALWAYS)
    server_id = cloud.boot(api)
    assert cloud.row(server_id).fault["message"].endswith("Last: spawn failed as injected")
    stories.settled(cloud)


def test_a_server_that_was_sent_to_a_host_does_not_move_on_to_another(admin, crowd):
    crowd.hosts["host1"].driver.faults.fail("spawn", times=ALWAYS)
    server_id = crowd.boot(admin, host="host1")
    assert stories.states(crowd, server_id) == ("error", None)
    assert crowd.row(server_id).host == "host1"
    assert "spawn" not in [verb for verb, _ in crowd.hosts["host1b"].driver.calls]


def test_a_zone_holds_also_for_the_second_host(api, crowd):
    crowd.hosts["host1"].report(zone="east")
    crowd.hosts["host1c"].report(zone="east")
    crowd.hosts["host1"].driver.faults.fail("spawn", times=ALWAYS)
    server_id = crowd.boot(api, availability_zone="east")
    assert (crowd.row(server_id).host, *stories.states(crowd, server_id)) == ("host1c", "active", None)


def test_a_host_that_failed_keeps_nothing_of_the_server(api, crowd):
    crowd.hosts["host1"].driver.faults.fail("spawn")
    server_id = crowd.boot(api)
    assert ("destroy", server_id) in crowd.hosts["host1"].driver.calls


def test_a_bad_image_is_an_error_at_once(api, crowd):
    for host in crowd.hosts.values():
        host.driver.faults.fail("spawn", times=ALWAYS, error=ImageUnusable)
    server_id = crowd.boot(api)
    assert stories.states(crowd, server_id) == ("error", None)
    assert [a for h in crowd.hosts.values() for a, _ in h.driver.calls].count("spawn") == 1
    assert set(crowd.used().values()) == {(0, 0)}
    assert crowd.row(server_id).fault["message"] == "spawn failed as injected"
    stories.settled(crowd)


def test_an_image_deleted_during_the_boot_is_an_error_that_says_so(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    cloud.image.delete()
    cloud.work()
    assert stories.states(cloud, server_id) == ("error", None)
    assert "404" in cloud.row(server_id).fault["message"]
    stories.settled(cloud)


def test_an_image_service_that_is_away_for_a_while_delays_the_boot_only(api, cloud, settings):
    url, settings.PUBLIC_URL = settings.PUBLIC_URL, "http://127.0.0.1:9"
    server_id = cloud.boot(api)
    assert stories.states(cloud, server_id) == ("building", "spawning")
    settings.PUBLIC_URL = url
    stories.later(cloud)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert len(cloud.history(server_id)) == 1


def test_a_hypervisor_that_comes_back_builds_the_server_without_moving_it(api, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=2, error=HypervisorUnavailable)
    server_id = cloud.boot(api)
    first = cloud.row(server_id).host
    for _ in range(2):
        stories.later(cloud)
        cloud.work()
    assert (cloud.row(server_id).host, *stories.states(cloud, server_id)) == (first, "active", None)
    stories.settled(cloud)


def test_a_hypervisor_that_stays_away_is_given_up_for_another_host(api, crowd):
    crowd.hosts["host1"].driver.go_away()
    server_id = crowd.boot(api)
    for _ in range(8):
        stories.later(crowd)
        crowd.work()
    assert (crowd.row(server_id).host, *stories.states(crowd, server_id)) == ("host1b", "active", None)
    assert crowd.used()["host1"] == (0, 0)


@pytest.mark.parametrize(
    ("flavor", "why"),
    [({"memory_mb": 1 << 20}, "memory"), ({"vcpus": 2000}, "CPUs"), ({"disk_gb": 1 << 20}, "disk")],
    ids=["memory", "CPUs", "disk"],
)
def test_a_server_nobody_has_room_for_is_an_error_in_cell0(flavor, why, cloud, settings):
    settings.QUOTA_DEFAULTS = settings.QUOTA_DEFAULTS | {"cores": -1, "ram": -1}
    sizes = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1} | flavor
    Flavor.objects.create(flavor_id="9", name="giant", **sizes)
    api = client("member")
    server_id = cloud.boot(api, flavorRef="9")
    server = api.get(f"/servers/{server_id}").json()["server"]
    assert server["status"] == "ERROR"
    assert server["fault"]["message"] == (
        f"No valid host was found. No host passed the filter for: {why}."
    )
    assert cloud.cell_of(server_id).id == CELL0
    created = stories.last_action(api, server_id)
    assert (created["action"], created["message"]) == ("create", "Error")
    assert set(cloud.used().values()) == {(0, 0)}
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert cloud.row(server_id).deleted
    assert quota.usage(PROJECT) == quota.Usage()


def test_hosts_that_are_disabled_or_silent_get_no_servers(api, cloud):
    _disable(cloud, "host1")
    _disable(cloud, "host2")
    server_id = cloud.boot(api)
    assert cloud.row(server_id).fault["message"].endswith("No host passed the filter for: enabled.")


def test_servers_of_one_request_are_all_built(api, cloud):
    cloud.boot(api, min_count=3, max_count=3)
    servers = api.get("/servers/detail").json()["servers"]
    assert [(s["name"], s["status"]) for s in sorted(servers, key=lambda s: s["name"])] == [
        (f"a-{n}", "ACTIVE") for n in (1, 2, 3)
    ]
    assert sum(cpus for cpus, _ in cloud.used().values()) == 3
    stories.settled(cloud)


@pytest.mark.parametrize(("limit", "built"), [({"cores": 4}, 3), ({"instances": 2, "cores": -1}, 1), ({"ram": -1}, 5)])
def test_of_many_servers_as_many_are_built_as_the_quota_lets_and_nothing_is_left_of_the_others(
    api, cloud, limit, built
):
    cloud.boot(api)
    quota.set_limits(PROJECT, limit)
    cloud.boot(api, "many", min_count=1, max_count=5)
    many = [f"many-{number + 1}" for number in range(built)]
    assert sorted(server["name"] for server in api.get("/servers").json()["servers"]) == ["a", *many]
    for model in (InstanceMapping, RequestSpec):
        assert model.objects.count() == 1 + built
    assert quota.usage(PROJECT) == quota.Usage(1 + built, 1 + built, (1 + built) * 512)
    quota.set_limits(PROJECT, {"instances": 1 + built})
    refused = api.send("post", "/servers", cloud.body(min_count=1, max_count=5))
    assert (refused.status_code, InstanceMapping.objects.count()) == (403, 1 + built)


def test_readers_cannot_boot(reader, cloud):
    assert reader.send("post", "/servers", cloud.body()).status_code == 403


def test_a_server_that_is_not_placed_yet_is_not_ready_for_anything(api, stranger, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    answer = stories.act(api, server_id, {"pause": None})
    assert (answer.status_code, stories.message(answer)) == (409, f"Instance {server_id} is not ready")
    assert stories.act(stranger, server_id, {"pause": None}).status_code == 404


def _disable(cloud, name):
    from cells.context import target_cell
    from compute.models import Service

    with target_cell(cloud.hosts[name].cell):
        Service.objects.filter(host=name).update(disabled=True)
