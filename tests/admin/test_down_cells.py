"""With a cell down every page is there, says which cell, and shows what is not known as what it is."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib import admin
from django.urls import reverse
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import BuildRequest, Cell, CellOutage, DeferredDelete, DeferredEvent, HostMapping, ServerSnapshot
from compute.models import Instance, Service, Step
from tests.admin.conftest import HOSTS, action, furnish
from tests.admin.test_pages import CELLS, EVIL, GONE, SERVERS, text
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
CUSTOM = ("actions_in_progress", "migrations", "services")  # pages of records that have no model on the global side
ASK_CELLS = {"index", "cells_instancemapping", "cells_hostmapping", *CUSTOM}
LISTS = sorted(f"{model._meta.app_label}_{model._meta.model_name}" for model in admin.site._registry)


@pytest.fixture
def wounded(cells, lost):
    """A cell that works, with a server; and one that is down, with a server and a host that were there."""
    furnish(cells["cell1"], "h1")
    rows.mapping(lost, GONE)
    HostMapping.objects.create(host="h9", cell=lost)
    Cell.objects.filter(pk=lost.pk).update(swept_at=timezone.now() - timedelta(hours=2))
    ServerSnapshot.objects.create(
        server_id=GONE, cell=lost, name=f"web-9 {EVIL}", vm_state="error", host="h9", flavor="m1.large", power_state=1,
        addresses={"net": [{"addr": "10.0.0.9"}]}, changed_at=timezone.now() - timedelta(days=1),
    )  # fmt: skip
    BuildRequest.objects.create(
        server_id="b1", project_id="p1", user_id="u1", request_id="req-1", created_at=timezone.now(), instance={}
    )
    return lost


@pytest.mark.parametrize("page", ["index", *LISTS, *CUSTOM])
def test_every_page_is_there_and_those_that_ask_cells_name_the_one_that_is_down(browser, wounded, page):
    name = page if page in ("index", *CUSTOM) else f"{page}_changelist"
    shown = text(browser, reverse(f"admin:{name}"))
    assert EVIL not in shown
    if page in ASK_CELLS - {"index"}:
        assert re.search(r"Cell lost does not answer \(missing: there is no such file, for [^)]+\)", shown)
    if page in ("index", "cells_cell"):
        assert "▼ down" in shown
        assert "missing: there is no such file, for" in shown


def test_a_cell_that_takes_calls_and_says_nothing_is_called_once_by_all_pages_together(browser, cells, settings):
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 0.5, 600
    furnish(cells["cell1"], "h1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/silent"
        silent = Cell.objects.create(id=str(uuid4()), name="silent", database_url=url)
        rows.mapping(silent, GONE)
        HostMapping.objects.create(host="h9", cell=silent)
        for page in ("index", *(f"{one}_changelist" for one in LISTS), *CUSTOM):
            text(browser, reverse(f"admin:{page}"))
        shown = text(browser, f"{SERVERS}{GONE}/change/")
        assert "Cell silent does not answer (silent: did not answer in time)" in shown
        server.settimeout(0)
        calls = 0
        with suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                calls += 1
    assert calls == 1


@pytest.mark.parametrize("model", admin.site._registry, ids=lambda model: model._meta.model_name)
def test_the_page_of_each_record_is_there(browser, wounded, model):
    for row in model.objects.all():
        found = browser.get(reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=(row.pk,)))
        assert found.status_code == 200, row
        assert EVIL not in found.content.decode()


def test_the_page_of_a_service_of_the_down_cell_says_what_it_does_not_know(browser, wounded):
    shown = text(browser, reverse("admin:service", args=(wounded.pk, GONE)))
    assert "Cell lost does not answer (missing: there is no such file)" in shown


def test_the_page_of_an_unknown_server_shows_what_it_was_and_that_this_is_not_what_it_is(browser, wounded):
    page = text(browser, f"{SERVERS}{GONE}/change/")
    assert "? UNKNOWN" in page
    assert "Last confirmed 2\xa0h\xa00\xa0min ago. The present state is unknown" in page
    for words in ("✖ was ERROR", "RUNNING", "h9", "m1.large", "10.0.0.9", "web-9"):
        assert words in page
    red = re.findall(r'<span class="[^"]*bg-red[^"]*"[^>]*>[^<]*', page)
    assert red == []  # that it was in ERROR is no alarm of now
    ServerSnapshot.objects.all().delete()
    assert "There is no record of its last known state." in text(browser, f"{SERVERS}{GONE}/change/")


def sign_of(page: str, word: str) -> tuple[str, str]:
    """The colour and the shape of a word."""
    found = re.search(rf'<span class="[^"]*bg-(\w+)[^"]*" title="[^"]*">(\S) {word}</span>', page)
    assert found, word
    return found[1], found[2]


def test_unknown_error_a_lost_host_and_a_stuck_action_differ_by_eye(browser, cells, wounded):
    cell = cells["cell1"]
    rows.service(cell, "dead", last_seen_up=timezone.now() - timedelta(hours=1))
    alone = rows.server(cell, host="dead")
    stuck, busy = (rows.server(cell, host="h1", task_state="rebooting") for _ in range(2))
    rows.server(cell, host="h1", vm_state="error")
    action(cell, busy.uuid, host="h1")
    with target_cell(cell):
        Instance.objects.filter(task_state="rebooting").update(updated_at=timezone.now() - timedelta(hours=1))
    page = text(browser, SERVERS)
    signs = {word: sign_of(page, word) for word in ("UNKNOWN", "ERROR", "host lost", "stuck")}
    assert signs["UNKNOWN"] == ("base", "?")
    assert signs["ERROR"] == ("red", "✖")
    assert len({shape for _, shape in signs.values()}) == 4
    assert [colour for colour, _ in signs.values()].count("base") == 1
    assert len(re.findall("⧗ stuck", page)) == 1, "the one that is worked on is not stuck"
    assert "▼ host lost" in text(browser, f"{SERVERS}{alone.uuid}/change/")
    assert "⧗ stuck" in text(browser, f"{SERVERS}{stuck.uuid}/change/")
    assert "⧗ stuck" not in text(browser, f"{SERVERS}{busy.uuid}/change/")
    with target_cell(cell):
        Step.objects.all().delete()
        Service.objects.filter(host="dead").update(ended_at=timezone.now())
    page = text(browser, SERVERS)
    assert len(re.findall("⧗ stuck", page)) == 2
    assert "▽ host stopped" in page


def test_the_page_of_cells_says_what_waits_for_one_and_what_other_processes_saw(browser, wounded):
    now = timezone.now()
    who = {"project_id": "p1", "user_id": "u1", "request_id": "req-1"}
    for number in range(2):
        DeferredDelete.objects.create(server_id=f"{number}", cell=wounded, asked_at=now, **who)
    DeferredEvent.objects.create(
        server_id="1", cell=wounded, name="network-changed", status="completed", received_at=now, **who
    )
    saw = ("api on a, pid 1", 1200, 1140), ("api on a, pid 2", 1199, 1141), ("api on b", 600, None)
    for name, began, ended in saw:
        CellOutage.objects.create(
            cell=wounded, seen_by=name, reason="too slow", began_at=now - timedelta(seconds=began),
            ended_at=ended and now - timedelta(seconds=ended),
            confirmed_at=now - timedelta(seconds=ended or 500),
        )  # fmt: skip
    page = text(browser, CELLS)
    assert "2 deletes, 1 external event" in page
    assert "2 times, 2\xa0min\xa040\xa0s" in page
    one = text(browser, f"{CELLS}{wounded.pk}/change/")
    assert "UTC: down for 1\xa0min\xa00\xa0s, recovered (too slow)" in one
    assert re.search(r"api on a, pid 1\napi on a, pid 2\">api on a, pid 1 and 1 more<", one)
    assert "UTC: down for at least 1\xa0min\xa040\xa0s; the process stopped (too slow)" in one


def test_a_cell_that_is_disabled_gets_no_server_from_the_very_next_placement_on(api, cloud, browser):
    cell1, cell2 = cloud.cells["cell1"], cloud.cells["cell2"]
    cloud.boot(api)
    for verb, cell, other in (("disable_cells", cell1, cell2), ("disable_cells", cell2, None)):
        browser.post(CELLS, {"_selected_action": [cell.pk], "action": verb})
        if other is not None:
            assert cloud.cell_of(cloud.boot(api)) == other
    browser.post(CELLS, {"_selected_action": [cell1.pk], "action": "enable_cells"})
    assert cloud.cell_of(cloud.boot(api)) == cell1


def test_a_cell_that_comes_back_is_shown_as_it_is_on_the_next_look(browser, cells):
    server = furnish(cells["cell1"], "h1")[0]
    circuit_breaker.record_failure(cells["cell1"].id, "cut off")
    assert "? UNKNOWN" in text(browser, f"{SERVERS}{server}/change/")
    assert "h1" in text(browser, HOSTS)
    circuit_breaker.record_recovery(cells["cell1"].id)
    page = text(browser, f"{SERVERS}{server}/change/")
    assert "? UNKNOWN" not in page
    assert "Last known state" not in page
    assert "does not answer" not in text(browser, SERVERS) + text(browser, HOSTS)
