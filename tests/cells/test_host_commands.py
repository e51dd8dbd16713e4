"""The commands about hosts, servers, queues and services: every exit code, and never a traceback."""

from __future__ import annotations

import json
from datetime import timedelta
from unittest import mock

import pytest
from django.db import IntegrityError
from django.utils import timezone

from cells import brokers
from cells.context import target_cell
from cells.models import BuildRequest, HostMapping, InstanceMapping, RequestSpec
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
NEW = "eeeeeeee-eeee-4eee-8eee-eeeeeeeeeeee"


def test_discover_maps_new_hosts_once(run, cells):
    rows.service(cells["cell1"], "h1")
    rows.service(cells["cell2"], "h2")
    rows.service(cells["cell2"], "c2", binary="nova-conductor")
    ended = run("discover_hosts", "--verbose", "--by-service", "--strict")
    assert (ended.code, ended.err) == (0, "")
    assert "h1 is in cell1" in ended.out
    assert set(HostMapping.objects.values_list("host", "cell__name")) == {("h1", "cell1"), ("h2", "cell2")}
    assert run("discover_hosts").code == 0
    assert run("discover_hosts", "--strict").code == 1
    assert run("discover_hosts", "--uuid", NEW).code == 1


def test_discover_maps_the_rest_while_a_cell_is_down(run, cells, lost):
    rows.service(cells["cell1"], "h1")
    ended = run("discover_hosts")
    assert ended.code == 1
    assert "lost does not answer" in ended.err
    assert HostMapping.objects.filter(host="h1").exists()


def test_discover_names_a_host_that_is_in_two_cells(run, cells):
    HostMapping.objects.create(host="h1", cell=cells["cell2"])
    rows.service(cells["cell1"], "h1")
    ended = run("discover_hosts")
    assert ended.code == 1
    assert "h1 of cell1 is mapped" in ended.err


def test_discover_loses_a_race(run, cells):
    rows.service(cells["cell1"], "h1")
    with mock.patch.object(HostMapping.objects, "create", side_effect=IntegrityError):
        assert run("discover_hosts").code == 2


def test_hosts_are_listed_and_forgotten(run, cells, lost):
    cell1 = cells["cell1"]
    for host, cell in (("h1", cell1), ("h2", cell1), ("h3", lost)):
        HostMapping.objects.create(host=host, cell=cell)
    assert [row["host"] for row in json.loads(run("list_hosts", "--json").out)] == ["h1", "h2", "h3"]
    assert "h3" not in run("list_hosts", "--uuid", cell1.id).out
    assert run("list_hosts", "--uuid", NEW).code == 1
    rows.server(cell1, host="h1")
    assert run("host_delete", "--uuid", NEW, "--host", "h1").code == 1
    assert run("host_delete", "--uuid", cell1.id, "--host", "h9").code == 2
    assert run("host_delete", "--uuid", cell1.id, "--host", "h3").code == 3
    assert run("host_delete", "--uuid", cell1.id, "--host", "h1").code == 4
    assert run("host_delete", "--uuid", lost.id, "--host", "h3").code == 5
    assert run("host_delete", "--uuid", cell1.id, "--host", "h2").code == 0
    assert not HostMapping.objects.filter(host="h2").exists()


def test_servers_of_a_restored_cell_are_mapped_in_batches(run, cells, lost):
    cell1 = cells["cell1"]
    with target_cell(cell1):
        for index in range(60):
            rows.server(cell1, mapped=False, display_name=f"s{index}", deleted=index == 0)
    assert run("map_instances", "--uuid", cell1.id, "--max-count", "0").code == 127
    assert run("map_instances", "--uuid", cell1.id, "--max-count", "few").code == 127
    assert run("map_instances", "--uuid", NEW).code == 255
    assert run("map_instances", "--uuid", lost.id).code == 255
    assert run("map_instances", "--uuid", cell1.id, "--max-count", "55").code == 1
    assert InstanceMapping.objects.count() == RequestSpec.objects.count() == 55
    assert run("map_instances", "--uuid", cell1.id, "--max-count", "5", "--reset").code == 0
    assert InstanceMapping.objects.filter(queued_for_delete=True).count() == 1
    assert run("map_instances", "--uuid", cell1.id).out == "0 servers mapped.\n"


def test_verify_says_where_a_server_is(run, cells, lost):
    cell1 = cells["cell1"]
    fine, deleted = rows.server(cell1), rows.server(cell1, deleted=True, queued=True)
    ids = [f"{n}0000000-0000-4000-8000-000000000000" for n in range(1, 5)]
    rows.mapping(None, ids[0])
    rows.mapping(cell1, ids[1])
    rows.mapping(lost, ids[2])
    rows.mapping(cell1, ids[3])
    BuildRequest.objects.create(
        server_id=ids[3],
        project_id="p1",
        user_id="u1",
        request_id="r",
        instance={},
        created_at=timezone.now(),
    )

    def code(server):
        return run("verify_instance", "--server", server).code

    assert [code(s) for s in (fine.uuid, NEW, ids[0], deleted.uuid, ids[1])] == [0, 1, 2, 3, 4]
    assert "not verified" in run("verify_instance", "--server", ids[2]).out
    assert "on its way" in run("verify_instance", "--server", ids[3]).out
    quiet = run("verify_instance", "--server", NEW, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (1, "", "")


def test_services_of_all_cells_with_their_age(run, cells, lost):
    rows.service(cells["cell1"], "h1", incarnation="life-1")
    rows.service(cells["cell2"], "h2", last_seen_up=timezone.now() - timedelta(hours=1), disabled=True)
    rows.service(cells["cell2"], "h3", last_seen_up=None)
    ended = run("service_list", "--json")
    listed = {row["host"]: row for row in json.loads(ended.out)}
    assert (ended.code, "lost does not answer" in ended.err) == (0, True)
    assert (listed["h1"]["cell"], listed["h1"]["state"], listed["h1"]["incarnation"]) == (
        "cell1",
        "up",
        "life-1",
    )
    assert (listed["h2"]["state"], listed["h2"]["wanted"]) == ("down", "disabled")
    assert listed["h2"]["age"] > 3000
    assert listed["h3"]["age"] is None
    assert "h1" in run("service_list").out


def test_depths_of_every_queue_and_a_broker_that_is_away(run, cells, lost, settings):
    settings.BROKER_URL = "memory://"
    for name, url in (("cell1", "memory://"), ("cell2", "redis://127.0.0.1:1/0")):
        cells[name].broker_url = url
        cells[name].save()
    HostMapping.objects.create(host="h1", cell=cells["cell1"])
    rows.service(cells["cell1"], "h9")
    with brokers.connection("memory://") as wire:
        wire.SimpleQueue("compute.h1").put({"step_id": 1})
        ended = run("queue_depths", "--json")
    depths = json.loads(ended.out)
    assert depths["global"] == {"scheduler": 0}
    assert depths["cell1"] == {
        "conductor": 0, "compute.h1": 1, "compute-ops.h1": 0, "compute.h9": 0, "compute-ops.h9": 0,
    }  # fmt: skip
    assert depths["cell2"] == {"conductor": None}
    assert "broker of cell2 does not answer" in ended.err
    assert "lost does not answer" in ended.err
    assert "compute.h1" in run("queue_depths").out
