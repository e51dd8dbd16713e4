"""os-server-external-events: what may be said, by whom, and the code of each event."""

import shutil
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connections

from cells.context import target_cell
from cells.models import Cell, DeferredEvent, InstanceMapping
from cells.sqlite.base import create_file
from compute.external_events import journal as external_events_journal
from compute.models import InstanceAction, Service, Step
from tests.api import servers
from tests.api.queries import counted
from tests.conftest import client
from tests.flow.stories import message

PATH = "/os-server-external-events"
LONG_AGO = "2026-01-01T00:00Z"


@pytest.fixture
def service(cells):
    """A service, as an Ironic is one: no admin, and no member of anything."""
    return client("service", project="d" * 32)


def off(server_id, **more):
    return {"name": "power-update", "server_uuid": server_id, "tag": "POWER_OFF", **more}


def heard(server_id, name="network-changed", **more):
    return {"name": name, "server_uuid": server_id, **more}


def say(who, *events, **extra):
    return who.send("post", PATH, {"events": list(events)}, **extra)


def codes(answer):
    """(overall, code of each); what was said is said again."""
    found = answer.json()["events"]
    assert all(one["status"] == ("completed" if one["code"] == 200 else "failed") for one in found)
    return answer.status_code, [one["code"] for one in found]


def journal(cell, **where):
    with target_cell(cell):
        rows = InstanceAction.objects.filter(**where).order_by("pk")
        return [(row.action, [(s.host, s.queue, s.event) for s in row.steps.order_by("pk")]) for row in rows]


# -- who, and what


@pytest.mark.parametrize(("roles", "status"), [(("admin",), 200), (("service",), 200), (("manager",), 403),
                                               (("member",), 403), (("reader",), 403)])  # fmt: skip
def test_events_are_for_services_and_admins(cells, roles, status):
    server_id = servers.server(cells["cell1"])
    assert say(client(*roles), heard(server_id)).status_code == status


def test_without_a_token_nothing_is_said(cells):
    from tests.conftest import Api

    assert say(Api(), heard(str(uuid4()))).status_code == 401


@pytest.mark.parametrize(("name", "since"), [
    ("network-changed", "2.1"), ("network-vif-plugged", "2.1"), ("network-vif-unplugged", "2.1"),
    ("network-vif-deleted", "2.1"), ("volume-extended", "2.51"), ("power-update", "2.76"),
    ("accelerator-request-bound", "2.82"), ("volume-reimaged", "2.93"),
])  # fmt: skip
def test_a_name_is_known_since_its_microversion(service, cells, name, since):
    event = heard(servers.server(cells["cell1"]), name, tag="POWER_ON")
    assert codes(say(service, event, version=since)) == (200, [200])
    before = f"2.{int(since.split('.')[1]) - 1}"
    if before != "2.0":
        answer = say(service, event, version=before)
        assert (answer.status_code, f"'{name}' is not one of" in message(answer)) == (400, True)


@pytest.mark.parametrize(("body", "text"), [
    ({}, "'events' is a required property"),
    ({"events": []}, "[] should be non-empty"),
    ({"events": [{"name": "network-changed"}]}, "'server_uuid' is a required property"),
    ({"events": [{"server_uuid": str(uuid4())}]}, "'name' is a required property"),
    ({"events": [heard(str(uuid4()), host="h1")]}, "'host' was unexpected"),
    ({"events": [heard(str(uuid4()))], "more": 1}, "'more' was unexpected"),
    ({"events": [heard("web")]}, "field/attribute server_uuid. Value: web."),
    ({"events": [heard(str(uuid4()), status="done")]}, "'done' is not one of"),
    ({"events": [heard(str(uuid4()), tag="x" * 256)]}, "is too long"),
    ({"events": [heard(str(uuid4()), tag=None)]}, "None is not of type 'string'"),
    ({"events": [heard(str(uuid4()))] * 1001}, "at most 1000 events"),
])  # fmt: skip
def test_what_has_not_the_form_of_events_is_refused_as_a_whole(service, body, text):
    answer = service.send("post", PATH, body)
    assert (answer.status_code, text in message(answer)) == (400, True), message(answer)


def test_an_event_is_answered_with_what_it_said(service, cells):
    server_id = servers.server(cells["cell1"])
    plugged = heard(server_id, "network-vif-plugged", status="in-progress", tag="port")
    assert say(service, plugged, heard(server_id)).json() == {"events": [
        plugged | {"code": 200, "status": "completed"}, heard(server_id) | {"code": 200, "status": "completed"},
    ]}  # fmt: skip


def test_an_ironic_may_leave_the_version_out_of_the_path_and_use_the_old_header(service, cells):
    server_id = servers.server(cells["cell1"])
    for path in ("/compute/os-server-external-events", "/compute/v2.1/os-server-external-events"):
        answer = service.send("post", path, {"events": [heard(server_id, "volume-reimaged")]}, version="",
                              HTTP_X_OPENSTACK_NOVA_API_VERSION="2.93")  # fmt: skip
        assert codes(answer) == (200, [200])


# -- each stands alone


def test_each_event_has_its_own_code_in_novas_order(service, cells, down_cell):
    good, other = servers.server(cells["cell1"]), servers.server(cells["cell2"])
    gone = servers.server(cells["cell1"], deleted=True)
    homeless = servers.server(cells["cell1"], host="", vm_state="shelved_offloaded")
    failed, unplaced, unknown = servers.server(cells["cell0"]), servers.unplaced(), str(uuid4())
    said = {
        heard(good)["server_uuid"]: (heard(good), 200),
        "upper": (heard(other.upper()), 200),
        "deleted": (heard(gone), 404), "unknown": (heard(unknown), 404),
        "no tag": (heard(good, "power-update"), 400), "empty tag": (heard(good, "power-update", tag=""), 400),
        "bad tag": (heard(good, "power-update", tag="power on"), 400),
        "no volume": (heard(other, "volume-extended"), 400),
        "bad tag of nobody": (heard(unknown, "power-update", tag="?"), 404),
        "bad tag, no host": (heard(homeless, "power-update", tag="?"), 400),
        "no host": (heard(homeless), 422), "never had one": (heard(failed), 422), "not yet": (heard(unplaced), 422),
    }  # fmt: skip
    assert codes(say(service, *(event for event, _ in said.values()))) == (207, [code for _, code in said.values()])
    assert journal(cells["cell1"]) == [("external_event", [("host1", "ops", "compute_external_event")])]
    assert len(journal(cells["cell2"])) == 1
    assert journal(cells["cell0"]) == []


def test_one_that_all_failed_is_207_too(service, cells):
    assert codes(say(service, heard(str(uuid4())))) == (207, [404])


def test_a_server_that_moves_hears_of_its_ports_on_both_hosts_and_of_its_volumes_where_it_is(service, cells):
    server_id, still = servers.server(cells["cell1"]), servers.server(cells["cell1"])
    with target_cell(cells["cell1"]):
        for one, over in ((server_id, None), (still, LONG_AGO)):
            InstanceAction.objects.create(
                server_id=one, action="live-migration", key="MigrateLive", request_id="req-1", started_at=LONG_AGO,
                updated_at=LONG_AGO, finished_at=over, params={"source": "host1", "destination": "host9"},
            )  # fmt: skip
    events = [heard(server_id), heard(server_id, "volume-extended", tag="v"), heard(still)]
    assert codes(say(service, *events)) == (200, [200, 200, 200])
    hears = "compute_external_event"
    assert journal(cells["cell1"], key__in=["ExternalEvent", "ExtendVolume"]) == [
        ("external_event", [("host1", "ops", hears), ("host9", "ops", hears)]),
        ("extend_volume", [("host1", "ops", "compute_extend_volume")]),
        ("external_event", [("host1", "ops", hears)]),
    ]


def test_a_failure_of_ours_in_one_cell_harms_nobody(service, cells, monkeypatch):
    good, bad = servers.server(cells["cell1"]), servers.server(cells["cell2"])
    real = external_events_journal.record

    def breaks(events):
        if events[0].server_id == bad:
            raise KeyError("a bug")
        return real(events)

    monkeypatch.setattr(external_events_journal, "record", breaks)
    assert codes(say(service, heard(bad), heard(good), heard(bad, tag="p"))) == (200, [200, 200, 200])
    assert len(journal(cells["cell1"])) == 1
    assert [(one.server_id, one.tag) for one in DeferredEvent.objects.order_by("pk")] == [(bad, ""), (bad, "p")]


def test_a_server_of_a_down_cell_is_unknown_only_when_its_delete_was_accepted(service, cells, down_cell):
    there, leaving = str(uuid4()), str(uuid4())
    for server_id in (there, leaving):
        InstanceMapping.objects.create(server_id=server_id, cell=down_cell, project_id="p", user_id="u",
                                       queued_for_delete=server_id == leaving, created_at=LONG_AGO)  # fmt: skip
    answer = say(service, off(there), off(leaving), off(there, tag="?"), heard(there))
    assert codes(answer) == (207, [200, 404, 400, 200])
    assert [(one.name, one.server_id) for one in DeferredEvent.objects.order_by("pk")] == [
        ("power-update", there), ("network-changed", there)
    ]  # fmt: skip


# -- many


@pytest.fixture
def ten_cells(cells, down_cell, tmp_path):
    """Nine cells that answer, each a SQLite file, and one that does not."""
    made, template = [], tmp_path / "template.sqlite3"
    for number in range(9):
        file = tmp_path / f"{number}.sqlite3"
        cell = Cell.objects.create(id=str(uuid4()), name=f"more{number}", database_url=f"sqlite:///{file}")
        if number:
            shutil.copy(template, file)
        else:
            create_file(str(file))
            with target_cell(cell) as alias:
                call_command("migrate", database=alias, verbosity=0, interactive=False)
            connections[alias].close()
            shutil.copy(file, template)
        made.append(cell)
    yield [*made, down_cell]
    for cell in made:
        connections[cell.alias].close()
        del connections[cell.alias], connections.databases[cell.alias]


def test_a_thousand_events_over_ten_cells_with_one_down(service, ten_cells, settings):
    settings.CELL_TIMEOUT = 60  # of a machine that may have much else to do
    *up, down = ten_cells
    of = {cell.id: [servers.server(cell) for _ in range(98)] for cell in up}
    of[down.id] = [str(uuid4()) for _ in range(98)]
    InstanceMapping.objects.bulk_create(
        InstanceMapping(server_id=one, cell=down, project_id="p", user_id="u", created_at=LONG_AGO)
        for one in of[down.id]
    )
    events = [(heard(one), 200) for there in of.values() for one in there]
    for number in range(10):
        events.insert(number * 99, (heard(str(uuid4())), 404))
        events.insert(number * 99 + 50, (off(of[up[0].id][number], tag="POWER"), 400))
    assert codes(say(service, *(event for event, _ in events))) == (207, [code for _, code in events])
    for cell in up:
        with target_cell(cell):
            assert set(Step.objects.values_list("server_id", flat=True)) == set(of[cell.id])
    assert DeferredEvent.objects.count() == 98


def test_the_queries_of_a_batch_do_not_grow_with_it(service, cells, down_cell, settings):
    settings.CELL_RETRY_INTERVAL = 600  # who looks whether the cell is back asks, too

    def cost(count):
        there = [servers.server(cell, host=f"h{n}") for cell in (cells["cell1"], cells["cell2"]) for n in range(count)]
        for _ in range(count):
            there.append(str(uuid4()))
            InstanceMapping.objects.create(server_id=there[-1], cell=down_cell, project_id="p", user_id="u",
                                           created_at=LONG_AGO)  # fmt: skip
        with counted() as seen:
            assert codes(say(service, *map(heard, there)))[0] == 200
        return {alias: len(found) for alias, found in seen.items()}

    few = cost(2)
    assert cost(40) == few
    assert max(few.values()) <= 12, few


def test_a_host_too_old_for_the_ops_queue_is_told_on_the_other_one(service, cells, monkeypatch):
    from cells import brokers
    from compute.operations import dispatch

    told = []
    monkeypatch.setattr(brokers, "url", lambda alias: "redis://nowhere")
    monkeypatch.setattr(dispatch, "publish_all", lambda url, sent: [not told.append(one) for one in sent])
    with target_cell(cells["cell1"]):
        Service.objects.create(binary="nova-compute", host="old", version=1)
    events = [heard(servers.server(cells["cell1"], host=host)) for host in ("old", "new")]
    assert codes(say(service, *events)) == (200, [200, 200])
    dispatch._senders.submit(int).result(10)
    assert [queue for queue, _, _ in told] == ["compute.old", "compute-ops.new"]
