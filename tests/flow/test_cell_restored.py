"""A cell whose database was restored from an older backup: what it does not know, and what only it knows."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.apps import apps
from django.core.management.color import no_style
from django.db import connections, transaction

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import CellModel, InstanceMapping, RequestSpec, ServerSnapshot
from compute.models import Flavor, Instance, InstanceAction, Step
from compute.periodic import stale_delete_flags
from compute.placement import quota
from compute.servers import mappings
from compute.virt.fake.effects import Effect
from tests.conftest import PROJECT
from tests.flow import stories, two_hosts
from tests.flow.stories import act

HARD, SOFT = {"reboot": {"type": "HARD"}}, {"reboot": {"type": "SOFT"}}


@pytest.fixture(autouse=True)
def at_once(monkeypatch, settings):
    """What is wrong is put right when it is seen."""
    monkeypatch.setattr(mappings, "PATIENCE", 0.0)
    settings.RESEND_AFTER = 0
    for memory in (mappings._lost_since, mappings._unmapped_since, mappings._missized_since,
                   mappings._mappings_cursor, mappings._rows_cursor,
                   stale_delete_flags._seen, stale_delete_flags._cursor):  # fmt: skip
        memory.clear()


@contextmanager
def restored_after(cell):
    """What is done within is not in the cell's database afterwards: rows and numbers are those of the backup."""
    models = [model for model in apps.get_models() if issubclass(model, CellModel)]
    models.sort(key=lambda model: any(field.many_to_one for field in model._meta.fields))
    alias = cell.alias
    backup = {model: list(model.objects.using(alias).all()) for model in models}
    yield
    connection = connections[alias]
    with transaction.atomic(using=alias):
        for model in reversed(models):
            model.objects.using(alias).all().delete()
        for model in models:
            model.objects.using(alias).bulk_create(backup[model])
        with connection.cursor() as cursor:
            if connection.vendor == "sqlite":
                for model, rows in backup.items():
                    numbers = [max((row.pk for row in rows), default=0), model._meta.db_table]
                    cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", numbers)
            for statement in connection.ops.sequence_reset_sql(no_style(), models):
                cursor.execute(statement)


def counted():
    return quota.usage(PROJECT).instances


def test_a_server_its_restored_cell_does_not_know_is_deleted_once_and_not_counted(api, cloud):
    with restored_after(cloud.cells["cell1"]), restored_after(cloud.cells["cell2"]):
        server_id = cloud.boot(api)
    assert (api.get(f"/servers/{server_id}").status_code, counted()) == (404, 1)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert counted() == 0
    assert not [model for model in (InstanceMapping, RequestSpec, ServerSnapshot) if model.objects.exists()]
    assert api.delete(f"/servers/{server_id}").status_code == 404


def test_a_server_its_restored_cell_does_not_know_leaves_the_quota_by_itself(api, cloud, monkeypatch):
    kept = cloud.boot(api)
    with restored_after(cloud.cells["cell1"]), restored_after(cloud.cells["cell2"]):
        lost = cloud.boot(api)
    monkeypatch.setattr(mappings, "PATIENCE", 600.0)
    assert (mappings.repair(), counted()) == (0, 2)  # a restore may be going on
    monkeypatch.setattr(mappings, "PATIENCE", 0.0)
    assert (mappings.repair(), counted()) == (1, 1)
    assert mappings.repair() == 0
    assert InstanceMapping.objects.get(queued_for_delete=True).pk == lost
    assert api.delete(f"/servers/{lost}").status_code == 404
    assert api.get(f"/servers/{kept}").status_code == 200


def test_a_server_that_comes_back_with_a_newer_backup_is_counted_again(api, cloud):
    server_id = cloud.boot(api)
    cell = cloud.cell_of(server_id)
    with restored_after(cell):
        with target_cell(cell):
            Instance.objects.all().delete()
        assert (mappings.repair(), counted()) == (1, 0)
    assert (stale_delete_flags.clear(), counted()) == (1, 1)
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ACTIVE"


def test_a_server_whose_resize_is_lost_with_its_cells_last_hour_is_counted_with_the_size_it_has(admin, cloud):
    """Found by the simulation: the quota counted the size of the resize for good."""
    cloud.add_host("host3", "cell1")
    Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=4, memory_mb=2048, disk_gb=1)
    server_id = two_hosts.booted(admin, cloud)
    project_id = cloud.row(server_id).project_id
    small = quota.usage(project_id)
    with restored_after(cloud.cells["cell1"]):
        for body in ({"resize": {"flavorRef": "2"}}, {"confirmResize": None}):
            assert act(admin, server_id, body).status_code in (202, 204)
            assert mappings.repair() == 0  # while it goes on
            cloud.work()
        assert mappings.repair() == 0
    assert quota.usage(project_id).cores == 4
    assert (mappings.repair(), quota.usage(project_id)) == (1, small)
    assert RequestSpec.objects.get(pk=server_id).flavor["id"] == cloud.row(server_id).flavor_id
    assert mappings.repair() == 0


def test_a_server_whose_cell_is_down_is_not_given_up_and_its_time_begins_anew(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    cell = cloud.cell_of(server_id)
    with target_cell(cell):
        Instance.objects.all().delete()
    monkeypatch.setattr(mappings, "PATIENCE", 600.0)
    mappings.repair()
    assert mappings._lost_since[cell.pk]
    circuit_breaker.record_failure(cell.pk, "cut off")
    monkeypatch.setattr(mappings, "PATIENCE", 0.0)
    assert (mappings.repair(), counted()) == (0, 1)
    assert not mappings._lost_since.get(cell.pk)


@pytest.mark.parametrize("named", [False, True], ids=["before a cell is named", "before the row is written"])
def test_a_server_that_is_being_created_is_never_given_up(named, api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    if named:  # where a killed scheduler leaves it
        InstanceMapping.objects.update(cell=cloud.cells["cell1"])
    assert (mappings.repair(), counted()) == (0, 1)
    cloud.work()
    assert mappings.repair() == 0
    assert (stories.states(cloud, server_id), counted()) == (("active", None), 1)


def test_a_server_only_its_cell_knows_is_known_and_counted_again(api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    deleted = cloud.boot(api)
    api.delete(f"/servers/{deleted}")
    cloud.work()
    for model in (InstanceMapping, RequestSpec):  # the global database is the restored one
        model.objects.all().delete()
    assert (api.get(f"/servers/{server_id}").status_code, counted()) == (404, 0)
    monkeypatch.setattr(mappings, "PATIENCE", 600.0)
    assert mappings.repair() == 0
    monkeypatch.setattr(mappings, "PATIENCE", 0.0)
    assert (mappings.repair(), counted()) == (1, 1)
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ACTIVE"
    assert not InstanceMapping.objects.filter(pk=deleted).exists()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert counted() == 0
    stories.settled(cloud)


def test_many_servers_are_looked_at_in_turns(api, cloud, monkeypatch):
    monkeypatch.setattr(mappings, "BATCH", 2)
    servers = [cloud.boot(api) for _ in range(5)]
    for cell in cloud.cells.values():
        with target_cell(cell):
            Instance.objects.filter(uuid__in=servers[:4]).delete()
    InstanceMapping.objects.filter(pk=servers[4]).delete()
    assert sum(mappings.repair() for _ in range(5)) == 5
    assert counted() == 1


def test_a_deleted_server_that_a_backup_brings_back_is_counted_and_deleted_again(api, cloud):
    server_id = cloud.boot(api)
    with restored_after(cloud.cell_of(server_id)):
        assert api.delete(f"/servers/{server_id}").status_code == 204
        cloud.work()
    assert (stale_delete_flags.clear(), mappings.repair(), counted()) == (1, 0, 1)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert (api.get(f"/servers/{server_id}").status_code, counted()) == (404, 0)


@pytest.mark.parametrize("body", [HARD, SOFT], ids=["hard", "soft"])
def test_a_reboot_after_a_restore_is_done_though_its_step_has_the_number_of_an_older_one(body, api, cloud):
    server_id = cloud.boot(api)
    numbers = []

    def reboot():
        assert act(api, server_id, body).status_code == 202
        cloud.work()
        with target_cell(cloud.cell_of(server_id)):
            numbers.append(Step.objects.get(action=InstanceAction.objects.get(action="reboot")).pk)

    with restored_after(cloud.cell_of(server_id)):
        reboot()
    reboot()
    assert numbers[0] == numbers[1]
    done = [one.effect for one in cloud.host_of(server_id).driver.effects(server_id)]
    assert done.count(Effect.REBOOTED) == 2
