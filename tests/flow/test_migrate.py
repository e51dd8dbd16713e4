"""Cold migration: a server goes to another host with its power off meanwhile."""

from __future__ import annotations

import pytest

from compute.operations import registry
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message
from tests.flow.two_hosts import booted, claimed, homes, until

STEPS = [spec.name for spec in registry.named("Migrate").steps if spec.name != "cleanup_source"]


def asked(admin, cloud, value=None):
    """A server on host1, on its way."""
    server_id = booted(admin, cloud)
    answer = act(admin, server_id, {"migrate": value})
    assert answer.status_code == 202, answer.content
    return server_id


def is_at(cloud, server_id, host):
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (homes(cloud, server_id), claimed(cloud, server_id)) == ([host], {host})


def test_a_migrated_server_waits_for_a_word_and_is_confirmed(admin, cloud):
    server_id = asked(admin, cloud)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    assert homes(cloud, server_id) == ["host3"]
    assert act(admin, server_id, {"confirmResize": None}).status_code == 204
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host3")
    [migration] = admin.get("/os-migrations", version="2.80").json()["migrations"]
    assert (migration["status"], migration["migration_type"]) == ("confirmed", "migration")


def test_a_migrated_server_goes_back_when_that_is_wanted(admin, cloud):
    server_id = asked(admin, cloud)
    cloud.work()
    assert act(admin, server_id, {"revertResize": None}).status_code == 202
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_at(cloud, server_id, "host1")


def test_a_host_can_be_named_since_2_56(admin, cloud):
    server_id = booted(admin, cloud)
    cloud.add_host("host4", "cell1")
    assert act(admin, server_id, {"migrate": {"host": "host4"}}).status_code == 202
    cloud.work()
    assert homes(cloud, server_id) == ["host4"]


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("host1", "Cannot migrate to the host where the server exists."),
        ("nowhere", "Compute host nowhere could not be found."),
    ],
)
def test_a_wrong_host_is_refused_at_once(host, text, admin, cloud):
    server_id = booted(admin, cloud)
    answer = act(admin, server_id, {"migrate": {"host": host}})
    assert (answer.status_code, message(answer)) == (400, text)


def test_members_do_not_migrate(api, cloud):
    server_id = cloud.boot(api)
    assert act(api, server_id, {"migrate": None}).status_code == 403


@pytest.mark.parametrize("name", STEPS)
def test_hosts_that_drain_end_what_has_begun(name, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, name)
    for host in ("host1", "host3") if name not in ("check_source", "pick") else ("host1",):
        two_hosts.drain(cloud, host)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    assert homes(cloud, server_id) == ["host3"]
