"""Operators' commands about a cell that is down: a sentence, the right code, and never a traceback."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from uuid import uuid4

import pytest

from cells import scatter
from cells.models import Cell, DeferredDelete, HostMapping, InstanceMapping, RequestSpec
from tests.cells import rows
from tests.cells.conftest import NOWHERE
from tests.conftest import client

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
SERVER = "5e5e5e5e-0000-4000-8000-000000000001"


@pytest.fixture(params=["refuses", "has a wrong URL", "never answers"])
def away(request: pytest.FixtureRequest, cells: dict[str, Cell], settings) -> Iterator[Cell]:
    """A cell that is down, in each way; it has a host and a server."""
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 0.5, 3600
    with socket.create_server(("127.0.0.1", 0)) as door:
        urls = {
            "refuses": NOWHERE, "has a wrong URL": "gopher://nowhere",
            "never answers": f"postgresql://u:secret@127.0.0.1:{door.getsockname()[1]}/d",
        }  # fmt: skip
        cell = Cell.objects.create(id=str(uuid4()), name="away", database_url=urls[request.param])
        HostMapping.objects.create(host="h9", cell=cell)
        rows.mapping(cell, SERVER)
        RequestSpec.objects.create(
            server_id=SERVER, project_id="p1", user_id="u1", vcpus=1, memory_mb=1, disk_gb=1, flavor={"id": "1"}
        )
        yield cell


def test_it_is_listed_with_why_it_is_down(run, away):
    listed = {row["name"]: row for row in json.loads(run("cell_list", "--json").out)}
    assert listed["cell1"]["database"].endswith("ms")
    reasons = ("missing: there is no such file", "wrong URL: ", scatter.LATE)
    assert listed["away"]["database"].startswith(reasons)
    assert (listed["away"]["hosts"], "secret" in run("cell_list").out) == (1, False)
    assert run("cell_list").code == 0


def test_its_servers_are_deleted_first_and_then_it_can_be_forgotten(run, away):
    """Whatever became of its database: the API takes the deletes, and what is kept of them goes with the cell."""
    assert run("cell_delete", "--uuid", away.id).code == 2
    refused = run("cell_delete", "--uuid", away.id, "--force")
    assert refused.code == 3
    assert "1 server. Delete it first; that is accepted also while the cell is down." in refused.err
    assert client("admin").delete(f"/servers/{SERVER}").status_code == 204
    assert DeferredDelete.objects.count() == 1
    assert run("cell_delete", "--uuid", away.id).code == 2  # it has a host
    forgotten = run("cell_delete", "--uuid", away.id, "--force")
    assert forgotten.code == 0
    assert "The cell does not answer" in forgotten.err
    assert "could not be checked" in forgotten.err
    assert "The cell away is forgotten, with 1 records of deleted servers." in forgotten.out
    for left in (DeferredDelete, InstanceMapping, RequestSpec, HostMapping):
        assert not left.objects.exists()
    assert client("admin").get(f"/servers/{SERVER}").status_code == 404


def test_where_its_server_is_mapped_is_said_and_that_nobody_looked(run, away):
    said = run("verify_instance", "--server", SERVER)
    assert said.code == 0
    assert f"{SERVER} is mapped to away ({away.id}), which does not answer" in said.out
    assert said.out.strip().endswith("not verified.")
    InstanceMapping.objects.update(queued_for_delete=True)
    assert run("verify_instance", "--server", SERVER).out.strip().endswith("Its delete was asked for.")
    assert (run("verify_instance", "--server", SERVER, "--quiet").out, run("verify_instance").code) == ("", 1)


def test_nothing_is_mapped_in_it(run, away):
    ended = run("map_instances", "--uuid", away.id)
    assert ended.code == 255
    assert ended.err.startswith("The cell away does not answer (")


def test_its_old_servers_are_left_for_later(run, cells, away):
    here = rows.server(cells["cell1"]).uuid
    InstanceMapping.objects.update(queued_for_delete=None)
    ended = run("online_data_migrations", "--json")
    assert ended.code == 2
    assert "The cell away does not answer (" in ended.err
    assert "1 server is left." in ended.err
    assert json.loads(ended.out)[0]["completed"] == 1
    flags = dict(InstanceMapping.objects.values_list("server_id", "queued_for_delete"))
    assert flags == {here: False, SERVER: None}


def test_its_host_is_not_forgotten_as_it_may_have_servers(run, away):
    ended = run("host_delete", "--uuid", away.id, "--host", "h9")
    assert ended.code == 5
    assert "h9 may have servers" in ended.err
    assert "h9" in run("list_hosts", "--uuid", away.id).out
    looked = run("discover_hosts")
    assert (looked.code, "The cell away does not answer" in looked.err) == (1, True)


def test_it_can_be_disabled_renamed_and_moved_while_it_is_down(run, away, fresh_url):
    assert run("cell_update", "--uuid", away.id, "--disable", "--new-name", "far").code == 0
    assert run("cell_migrate", "--name", "far").code == 1
    assert run("cell_update", "--name", "far", "--database-url", fresh_url).code == 0
    assert "restore it (or --new-file)" in run("cell_migrate", "--name", "far").out
    assert run("cell_migrate", "--name", "far", "--new-file").code == 0


def test_services_of_the_others_are_listed(run, cells, away):
    rows.service(cells["cell1"], "h1")
    ended = run("service_list")
    assert "h1" in ended.out
    assert "The cell away does not answer" in ended.err
