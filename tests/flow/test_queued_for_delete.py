"""Whether a server is to be deleted, as the global side knows it: what is seen and counted while its cell is down.

The flag through the whole life of servers, in every way they can go and come back.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import InstanceMapping
from compute.models import Instance, Service
from compute.periodic import reclaim_deleted
from compute.placement import quota
from compute.servers import deferred_deletes
from tests.flow.stories import act

RESTORE, FORCE, LOCK, UNLOCK = ({name: None} for name in ("restore", "forceDelete", "lock", "unlock"))


@pytest.fixture
def keeping(settings):
    """Deleted servers can be restored for an hour."""
    settings.RECLAIM_INSTANCE_INTERVAL = 3600


@pytest.fixture
def is_living(api, cloud):
    """Whether the global side says that it lives: the flag, the list and the page while its cell is down, the quota."""

    def ask(server_id):
        cell = cloud.cell_of(server_id)
        flag = InstanceMapping.objects.get(pk=server_id).queued_for_delete
        circuit_breaker.record_failure(cell.id, "cut off")
        listed = server_id in [one["id"] for one in api.get("/servers").json()["servers"]]
        shown = api.get(f"/servers/{server_id}").status_code == 200
        circuit_breaker.record_recovery(cell.id)
        counted = quota.usage(api.caller.project_id).instances == 1
        assert listed == shown == counted == (not flag)
        return listed

    return ask


def delete(client, server_id):
    assert client.delete(f"/servers/{server_id}").status_code == 204


def cut_off(cloud, server_id):
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "cut off")


def back(cloud, server_id):
    circuit_breaker.record_recovery(cloud.cell_of(server_id).id)
    deferred_deletes.carry_out()
    cloud.work()


def is_gone(api, cloud, server_id):
    cloud.work()
    assert cloud.row(server_id).deleted
    assert api.get(f"/servers/{server_id}").status_code == 404


def test_a_delete_at_once_and_for_good(api, cloud, is_living):
    server_id = cloud.boot(api)
    assert is_living(server_id)
    delete(api, server_id)
    assert not is_living(server_id)  # before its host has heard of it
    is_gone(api, cloud, server_id)
    assert not is_living(server_id)


def test_a_delete_while_the_host_is_away(api, cloud, is_living):
    """Nova deletes it from the records; here the delete waits for the host, and it is the same to the user."""
    server_id = cloud.boot(api)
    with target_cell(cloud.cell_of(server_id)):
        Service.objects.update(last_seen_up=timezone.now() - timedelta(hours=1))
    delete(api, server_id)
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)
    assert not is_living(server_id)


def test_a_delete_of_a_server_no_host_took(api, cloud, is_living):
    for host in cloud.hosts.values():
        with target_cell(host.cell):
            Service.objects.update(disabled=True)
    server_id = cloud.boot(api)
    assert cloud.cell_of(server_id).is_cell0
    assert is_living(server_id)
    delete(api, server_id)
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)


def test_soft_deleted_restored_soft_deleted_again_and_forced(keeping, api, admin, cloud, is_living):
    server_id = cloud.boot(api)
    for _ in range(2):
        delete(api, server_id)
        assert not is_living(server_id)
        cloud.work()
        assert (cloud.row(server_id).vm_state, is_living(server_id)) == ("soft-delete", False)
        assert act(api, server_id, RESTORE).status_code == 202
        cloud.work()
        assert (cloud.row(server_id).vm_state, is_living(server_id)) == ("active", True)
    delete(api, server_id)
    cloud.work()
    assert act(admin, server_id, FORCE).status_code == 202
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)


def test_a_living_one_is_forced(api, admin, cloud, is_living):
    server_id = cloud.boot(api)
    assert act(admin, server_id, FORCE).status_code == 202
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)


def test_a_soft_deleted_one_whose_time_is_over(keeping, api, cloud, is_living):
    server_id = cloud.boot(api)
    delete(api, server_id)
    cloud.work()
    with target_cell(cloud.cell_of(server_id)):
        Instance.objects.update(soft_deleted_at=timezone.now() - timedelta(hours=2))
        assert reclaim_deleted.reclaim() == 1
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)
    assert not is_living(server_id)


@pytest.mark.parametrize("interval", [0, 3600], ids=["for good", "soft"])
def test_a_delete_while_its_cell_is_down(interval, api, cloud, is_living, settings):
    settings.RECLAIM_INSTANCE_INTERVAL = interval
    server_id = cloud.boot(api)
    cut_off(cloud, server_id)
    delete(api, server_id)
    assert not is_living(server_id)
    back(cloud, server_id)
    assert not is_living(server_id)
    row = cloud.row(server_id)
    assert (row.deleted, row.vm_state) == ((False, "soft-delete") if interval else (True, "deleted"))
    if interval:
        assert act(api, server_id, RESTORE).status_code == 202
        cloud.work()
        assert is_living(server_id)


def test_a_delete_while_its_cell_is_down_that_a_lock_forbids(api, cloud, is_living):
    server_id = cloud.boot(api)
    assert act(api, server_id, LOCK).status_code == 202
    cut_off(cloud, server_id)
    delete(api, server_id)
    assert not is_living(server_id)
    back(cloud, server_id)
    assert is_living(server_id)
    assert act(api, server_id, UNLOCK).status_code == 202
    delete(api, server_id)
    assert not is_living(server_id)
    is_gone(api, cloud, server_id)


def test_what_was_asked_for_and_never_placed_leaves_nothing(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    assert quota.usage(api.caller.project_id).instances == 1
    delete(api, server_id)
    assert quota.usage(api.caller.project_id).instances == 0
    assert not InstanceMapping.objects.exists()
