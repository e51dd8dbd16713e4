"""Data of older versions is filled up while the cloud runs, whatever cell is down."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from cells import circuit_breaker
from cells.models import BuildRequest, InstanceMapping
from compute.management.commands import online_data_migrations
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
COMMAND = "online_data_migrations"


def old(cell, **columns):
    """A server of an older version: nobody wrote down whether it was to be deleted."""
    server = rows.server(cell, **columns)
    InstanceMapping.objects.filter(pk=server.uuid).update(queued_for_delete=None)
    return server.uuid


def flag(server_id):
    return InstanceMapping.objects.get(pk=server_id).queued_for_delete


def test_every_old_server_gets_the_flag_it_should_have_had(run, cells):
    living = old(cells["cell1"])
    deleted = old(cells["cell1"], deleted=True, vm_state="deleted", host="")
    soft = old(cells["cell2"], vm_state="soft-delete")
    going = old(cells["cell2"], task_state="deleting")
    lost = rows.mapping(cells["cell2"], "gone-from-its-cell").pk
    InstanceMapping.objects.filter(pk=lost).update(queued_for_delete=None)
    ended = run(COMMAND, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == [
        {"migration": "populate_queued_for_delete", "needed": 5, "completed": 5, "left": 0}
    ]
    assert {key: flag(key) for key in (living, deleted, soft, going, lost)} == {
        living: False, deleted: True, soft: True, going: True, lost: True,
    }  # fmt: skip
    assert json.loads(run(COMMAND, "--json").out)[0]["needed"] == 0


def test_a_server_without_a_cell_is_on_its_way_or_gone(run, cells):
    for name in ("waits", "gone"):
        rows.mapping(None, name)
    InstanceMapping.objects.update(queued_for_delete=None)
    BuildRequest.objects.create(
        server_id="waits", project_id="p1", user_id="u1", request_id="r", instance={}, created_at=timezone.now()
    )
    assert run(COMMAND).code == 0
    assert (flag("waits"), flag("gone")) == (False, True)


def test_it_stops_at_the_most_that_is_wanted_and_goes_on_when_it_is_run_again(run, cells, monkeypatch):
    monkeypatch.setattr(online_data_migrations, "BATCH", 2)
    for _ in range(5):
        old(cells["cell1"])
    codes = []
    for _ in range(3):
        ended = run(COMMAND, "--max-count", "2")
        codes.append(ended.code)
    assert codes == [1, 1, 0]
    assert not InstanceMapping.objects.filter(queued_for_delete=None).exists()


def test_a_cell_that_is_down_is_named_and_left_for_later(run, cells):
    up, down = old(cells["cell1"]), old(cells["cell2"])
    circuit_breaker.record_failure(cells["cell2"].id, "cut off")
    ended = run(COMMAND)
    assert ended.code == 2
    assert "The cell cell2 does not answer (cut off): 1 server is left." in ended.err
    assert (flag(up), flag(down)) == (False, None)
    circuit_breaker.record_recovery(cells["cell2"].id)
    assert run(COMMAND).code == 0
    assert flag(down) is False


@pytest.mark.parametrize("most", ["0", "-1", "many"])
def test_a_wrong_number_has_novas_code(run, cells, most):
    assert run(COMMAND, f"--max-count={most}").code == 127


def test_a_delete_that_comes_meanwhile_wins(run, cells, monkeypatch):
    server_id = old(cells["cell1"])
    read = online_data_migrations._living

    def deleted_meanwhile(ids):
        living = read(ids)
        InstanceMapping.objects.filter(pk=server_id).update(queued_for_delete=True)
        return living

    monkeypatch.setattr(online_data_migrations, "_living", deleted_meanwhile)
    assert run(COMMAND).code == 0
    assert flag(server_id) is True
