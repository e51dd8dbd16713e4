"""The commands about cells and their URLs: every exit code, and never a traceback."""

from __future__ import annotations

import json

import pytest
from django.db import connections

from cells import cell_threads, circuit_breaker, scatter
from cells.context import target_cell
from cells.models import CELL0, Cell, HostMapping, InstanceMapping
from compute.models import Service
from tests.cells import rows
from tests.cells.conftest import NOWHERE

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
NEW = "eeeeeeee-eeee-4eee-8eee-eeeeeeeeeeee"
REDIS = "redis://:secret@127.0.0.1:1/0"


def create(run, *words, url, broker=REDIS):
    return run("cell_create", "--database-url", url, "--broker-url", broker, *words)


def test_a_cell_made_at_run_time_is_usable_at_once(run, cells, fresh_url):
    made = create(run, "--name", "fresh", "--uuid", NEW, "--verbose", url=fresh_url)
    assert (made.code, made.out.strip()) == (0, NEW)
    assert run("cell_migrate", "--name", "fresh").code == 0
    cell = Cell.objects.get(name="fresh")
    rows.service(cell, "h9")
    with target_cell(cell):
        assert Service.objects.get().host == "h9"
        assert "cells_cell" not in connections[cell.alias].introspection.table_names()
    assert run("discover_hosts", "--strict").code == 0
    assert HostMapping.objects.get(host="h9").cell == cell


def test_urls_come_from_the_environment_so_that_nobody_reads_them(run, db, fresh_url, monkeypatch):
    monkeypatch.setenv("STILLWATER_NEW_CELL_DATABASE_URL", fresh_url)
    monkeypatch.setenv("STILLWATER_NEW_CELL_BROKER_URL", REDIS)
    assert run("cell_create", "--name", "fresh", "--disabled").code == 0
    cell = Cell.objects.get(name="fresh")
    assert (cell.database_url, cell.broker_url, cell.disabled) == (fresh_url, REDIS, True)


@pytest.mark.parametrize(
    ("words", "url", "broker", "said"),
    [
        (["--name", ""], NOWHERE, REDIS, "name"),
        (["--name", "n"], "", REDIS, "No database URL"),
        (["--name", "n"], "mysql://h/d", REDIS, "not valid"),
        (["--name", "n"], NOWHERE, "", "No broker URL"),
        (["--name", "n"], NOWHERE, "gopher://h", "not valid"),
        (["--name", "n", "--uuid", "seven"], NOWHERE, REDIS, "not a UUID"),
        (["--name", "n", "--uuid", CELL0, "--disabled"], NOWHERE, REDIS, "cell0 cannot"),
    ],
)
def test_create_refuses_what_is_missing_or_wrong(run, words, url, broker, said):
    ended = create(run, *words, url=url, broker=broker)
    assert ended.code == 1
    assert said in ended.err


def test_cell0_needs_no_broker(run):
    assert create(run, "--name", "cell0", "--uuid", CELL0, url=NOWHERE, broker="").code == 0


def test_create_refuses_what_is_taken(run, cells, fresh_url):
    assert create(run, "--name", "cell1", url=fresh_url).code == 2
    assert create(run, "--name", "other", "--uuid", cells["cell1"].id, url=fresh_url).code == 2
    assert create(run, "--name", "other", url=cells["cell1"].database_url).code == 2


def test_create_refuses_the_global_database(run, cells):
    name = connections["default"].settings_dict["NAME"]
    if connections["default"].vendor == "sqlite":
        assert "global database" in create(run, "--name", "other", url=f"sqlite:///{name}").err


def test_if_missing_runs_again_and_follows_the_urls(run, fresh_url):
    words = ("--name", "fresh", "--uuid", NEW, "--if-missing")
    assert create(run, *words, url=fresh_url).code == 0
    assert create(run, *words, url=fresh_url, broker="redis://elsewhere:1/0").code == 0
    assert Cell.objects.get().broker_url == "redis://elsewhere:1/0"
    assert create(run, "--name", "x", "--uuid", NEW, "--if-missing", url=fresh_url).code == 2


def test_list_masks_passwords_unless_asked(run, fresh_url):
    create(run, "--name", "fresh", url=fresh_url)
    assert "secret" not in run("cell_list").out
    assert "secret" in run("cell_list", "--verbose").out
    row = json.loads(run("cell_list", "--json").out)[0]
    assert (row["name"], row["broker_url"]) == ("fresh", "redis://:****@127.0.0.1:1/0")


def test_update_changes_and_refuses(run, cells, fresh_url):
    cell1, uuid = cells["cell1"], ("--uuid", cells["cell1"].id)
    assert run("cell_update", "--uuid", NEW, "--disable").code == 1
    assert run("cell_update", *uuid, "--database-url", "mysql://h/d").code == 2
    assert run("cell_update", *uuid, "--broker-url", "gopher://h").code == 2
    assert run("cell_update", *uuid, "--new-name", "cell2").code == 3
    assert run("cell_update", *uuid, "--database-url", cells["cell2"].database_url).code == 3
    assert run("cell_update", *uuid, "--disable", "--enable").code == 4
    assert run("cell_update", "--uuid", CELL0, "--disable").code == 5
    assert (
        run("cell_update", "--name", "cell1", "--disable", "--new-name", "one", "--broker-url", REDIS).code
        == 0
    )
    cell1.refresh_from_db()
    assert (cell1.name, cell1.disabled, cell1.broker_url) == ("one", True, REDIS)
    assert run("cell_update", *uuid, "--enable").code == 0
    cell1.refresh_from_db()
    assert not cell1.disabled


def test_a_changed_url_is_followed_without_a_restart(run, cells, lost, fresh_url):
    """By the threads, too, that asked at the old place."""

    def hosts(_):
        return list(Service.objects.values_list("host", flat=True))

    for _ in range(cell_threads.THREADS_PER_CELL):
        assert isinstance(scatter.ask_one(lost, hosts), scatter.CellFailure)
        circuit_breaker._down.clear()
    assert run("cell_update", "--name", "lost", "--database-url", fresh_url).code == 0
    assert run("cell_migrate", "--name", "lost").code == 0
    lost.refresh_from_db()
    rows.service(lost, "h7")
    assert [scatter.ask_one(lost, hosts) for _ in range(cell_threads.THREADS_PER_CELL)] == [["h7"]] * 4


def test_migrate_goes_on_when_one_cell_is_down(run, cells, lost):
    ended = run("cell_migrate")
    assert ended.code == 1
    assert [line.split()[:2] for line in ended.out.splitlines()[1:]] == [
        ["cell0", "up"], ["cell1", "up"], ["cell2", "up"], ["lost", "failed:"],
    ]  # fmt: skip
    assert run("cell_migrate", "--name", "cell1").code == 0
    assert run("cell_migrate", "--uuid", NEW).code == 1


def test_delete_says_what_is_in_the_way(run, cells):
    cell, uuid = cells["cell1"], ("--uuid", cells["cell1"].id)
    assert run("cell_delete", "--uuid", NEW).code == 1
    HostMapping.objects.create(host="h1", cell=cell)
    assert run("cell_delete", *uuid).code == 2
    living = rows.server(cell)
    assert run("cell_delete", *uuid, "--force").code == 3
    InstanceMapping.objects.filter(pk=living.uuid).update(queued_for_delete=True)
    assert run("cell_delete", *uuid, "--force").code == 3  # the delete was asked for, not carried out
    with target_cell(cell):
        living.delete()
    HostMapping.objects.all().delete()
    assert run("cell_delete", *uuid).code == 4
    assert run("cell_delete", *uuid, "--force").code == 0
    assert not Cell.objects.filter(name="cell1").exists()
    assert not InstanceMapping.objects.exists()


def test_a_lost_cell_can_be_forgotten(run, lost):
    rows.mapping(lost, NEW, queued=True)
    refused = run("cell_delete", "--uuid", lost.id)
    assert refused.code == 4
    assert "could not be checked" in refused.err
    assert run("cell_delete", "--uuid", lost.id, "--force").code == 0
