"""Emptying a host through the admin pages: asked for in the drain dialog, followed in the panel, taken back."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from cells.context import target_cell
from compute.models import DrainMigration
from tests.admin.conftest import HOSTS, host, url
from tests.admin.test_drain_pages import press, stored
from tests.admin.test_pages import text
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def cell(cells):
    return cells["cell1"]


@pytest.fixture
def service(cell):
    """A host with three servers."""
    made = host(cell, "h1")
    for number in range(3):
        rows.server(cell, host="h1", node="h1", display_name=f"s{number}", vm_state="active")
    return made


def change(cell, state, **columns):
    """What a conductor writes of one that waits."""
    with target_cell(cell):
        one = DrainMigration.objects.filter(state="waiting").order_by("pk").first()
        DrainMigration.objects.filter(pk=one.pk).update(state=state, **columns)
        return one.server_id


def test_a_drain_that_empties_is_asked_for_and_shows_how_far_it_is(operator, cell, service):
    panel = press(operator, cell, service, "drain", reason="new disk", moves="2", exit="on")
    row = stored(cell, service)
    assert (row.drain_state, row.drain_moves, row.drain_wanted, row.drain_by) == ("emptying", 2, False, "admin:ann")
    assert "Drain (servers migrate first, 2 in parallel; no deadline, then exit): new disk" in panel
    assert "0 of 3 servers moved away, 3 waiting" in panel

    moving = change(cell, "moving")
    blocked = change(cell, "blocked", why="it is suspended: resume it")
    shown = text(operator, url(cell, service))
    assert "1 on their way, 1 waiting, 1 blocked" in shown
    assert "it is suspended: resume it" in shown
    assert moving in shown
    assert blocked in shown
    assert "empty, then drain, then exit" in shown
    assert "empty, then drain, then exit" in text(operator, HOSTS)
    assert LogEntry.objects.get().change_message.startswith("nova-compute@h1: drain (servers migrate first, 2 in")


def test_taken_back_those_that_wait_stay_and_those_that_left_may_return(operator, cell, service):
    press(operator, cell, service, "drain", moves="2")
    with target_cell(cell):
        gone = DrainMigration.objects.order_by("pk").first()
        type(gone).objects.filter(pk=gone.pk).update(state="away", moved_to="h2")
    panel = press(operator, cell, service, "undrain")
    assert stored(cell, service).drain_state == ""
    assert 'value="return"' in panel  # one is away
    with target_cell(cell):
        assert DrainMigration.objects.count() == 1

    panel = press(operator, cell, service, "return", moves="3")  # it lives on h1 all the same: back already
    assert (stored(cell, service).drain_moves, stored(cell, service).is_returning) == (3, True)
    assert "its servers return, 3 in parallel" in panel


def test_who_lives_elsewhere_since_is_named_and_left_alone(operator, cell, service):
    elsewhere = rows.server(cell, host="h9", node="h9", display_name="moved", vm_state="active")
    with target_cell(cell):
        DrainMigration.objects.create(server_id=elsewhere.uuid, host="h1", moved_to="h2", state="away")
    panel = press(operator, cell, service, "return", moves="")
    assert f"not returned, because they were moved since: {elsewhere.uuid} (on h9)" in panel


@pytest.mark.parametrize(("moves", "said"), [("0", "greater than or equal to 1"), ("many", "whole number")])
def test_a_wrong_number_is_said_and_changes_nothing(operator, cell, service, moves, said):
    assert said in press(operator, cell, service, "drain", moves=moves)
    assert stored(cell, service).drain_state == ""


def test_a_conductor_has_no_servers(operator, cell):
    conductor = rows.service(cell, "c1", "nova-conductor")
    assert "Servers migrated in parallel" not in text(operator, url(cell, conductor))
    assert "has no servers to migrate" in press(operator, cell, conductor, "drain", moves="2")
    assert "has no servers to migrate" in press(operator, cell, conductor, "return")
    assert stored(cell, conductor).drain_state == ""


def test_a_host_with_no_servers_drains_at_once(operator, cell):
    empty = host(cell, "h2")
    press(operator, cell, empty, "drain", moves="4")
    assert stored(cell, empty).drain_wanted
