"""Deleting a server for good where others are kept for a while."""

from __future__ import annotations

import pytest

from cells.models import InstanceMapping
from compute.virt.base import VirtError
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message, states

FORCE = {"forceDelete": None}


@pytest.fixture(autouse=True)
def _kept_for_an_hour(settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600


@pytest.mark.parametrize("where", [(), ("stop",), ("pause",), ("soft delete",), ("error",)], ids=str)
def test_from_every_state(where, api, admin, cloud):
    server_id = cloud.boot(api)
    if where == ("soft delete",):
        api.delete(f"/servers/{server_id}")
        cloud.work()
    elif where == ("error",):
        act(admin, server_id, {"os-resetState": {"state": "error"}})
    else:
        stories.lead(api, cloud, server_id, where)
    assert act(api, server_id, FORCE).status_code == 202
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete
    assert act(api, server_id, FORCE).status_code == 202  # it goes on already
    cloud.work()
    stories.ends_well("delete", cloud, server_id)
    assert [a.action for a in cloud.history(server_id)][-1] == "delete"


@pytest.mark.parametrize("begun", [False, True])
def test_a_soft_delete_on_its_way_is_overtaken(begun, api, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    if begun:
        host = cloud.host_of(server_id)
        step = host.begin(stories.only_step(cloud).pk)
        assert act(api, server_id, FORCE).status_code == 202
        host.finish(step)
    else:
        assert act(api, server_id, FORCE).status_code == 202
    cloud.work()
    assert cloud.row(server_id).deleted
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete
    stories.settled(cloud)


def test_a_soft_delete_does_not_overtake_it(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, FORCE)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert cloud.row(server_id).deleted


def test_a_restore_on_its_way_is_overtaken(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    admin.delete(f"/servers/{server_id}")
    cloud.work()
    act(admin, server_id, {"restore": None})
    two_hosts.until(cloud, "power_on")
    assert act(admin, server_id, FORCE).status_code == 202
    cloud.work()
    assert cloud.row(server_id).deleted
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete
    stories.settled(cloud)


def test_one_that_fails_is_in_error_and_counts(api, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    cloud.host_of(server_id).driver.faults.fail("destroy", error=VirtError)
    act(api, server_id, FORCE)
    cloud.work()
    assert states(cloud, server_id) == ("error", None)
    assert not InstanceMapping.objects.get(pk=server_id).queued_for_delete
    assert act(api, server_id, FORCE).status_code == 202
    cloud.work()
    stories.ends_well("delete", cloud, server_id)


def test_who_may(api, admin, stranger, reader, cloud):
    server_id = cloud.boot(api)
    assert act(stranger, server_id, FORCE).status_code == 404
    assert act(reader, server_id, FORCE).status_code == 403
    act(api, server_id, {"lock": None})
    locked = act(api, server_id, FORCE)
    assert (locked.status_code, message(locked)) == (409, f"Instance {server_id} is locked")
    assert not InstanceMapping.objects.get(pk=server_id).queued_for_delete
    assert act(admin, server_id, FORCE).status_code == 202
    cloud.work()
    assert cloud.row(server_id).deleted
