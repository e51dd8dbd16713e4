"""Confirming a resize: what the old host has kept is gone, and so is its room."""

from __future__ import annotations

import pytest

from compute.virt.base import VirtError
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message
from tests.flow.test_resize import asked, is_gone, is_large, large, other  # noqa: F401  large is a fixture
from tests.flow.two_hosts import until

CONFIRM = {"confirmResize": None}
STEPS = ["cleanup_source", "update_quota"]


@pytest.fixture
def resized(api, cloud, large):  # noqa: F811
    """A resized server, and its old host."""
    server_id, source = asked(api, cloud)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    return server_id, source


def test_what_was_not_resized_cannot_be_confirmed(api, cloud):
    server_id = cloud.boot(api)
    answer = act(api, server_id, CONFIRM)
    text = f"Cannot 'confirmResize' instance {server_id} while it is in vm_state active"
    assert (answer.status_code, message(answer)) == (409, text)


def test_a_confirmed_server_cannot_be_confirmed_or_reverted_again(api, cloud, resized):
    server_id, source = resized
    assert act(api, server_id, CONFIRM).status_code == 204
    assert act(api, server_id, {"revertResize": None}).status_code == 409
    assert act(api, server_id, CONFIRM).status_code == 409
    cloud.work()
    assert act(api, server_id, CONFIRM).status_code == 409
    is_large(cloud, server_id, other(source))


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("name", STEPS)
def test_whoever_is_killed_it_is_confirmed(name, when, api, cloud, resized):
    server_id, source = resized
    act(api, server_id, CONFIRM)
    step = until(cloud, name)
    two_hosts.killed(cloud, step, when)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    is_large(cloud, server_id, other(source))
    assert cloud.hosts[source].driver._departed(server_id) == ""


def test_a_confirm_that_fails_can_be_asked_for_again(api, cloud, resized):
    server_id, source = resized
    cloud.hosts[source].driver.faults.fail("cleanup_source", error=VirtError)
    act(api, server_id, CONFIRM)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    assert act(api, server_id, CONFIRM).status_code == 204
    cloud.work()
    is_large(cloud, server_id, other(source))


@pytest.mark.parametrize("name", STEPS)
def test_a_server_deleted_while_it_is_confirmed_leaves_nothing(name, api, cloud, resized):
    server_id, _ = resized
    act(api, server_id, CONFIRM)
    until(cloud, name)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    is_gone(cloud, server_id)
