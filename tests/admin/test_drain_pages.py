"""Draining through the admin pages: what is wanted and seen, the buttons, and what holds a drain up."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from cells.context import target_cell
from cells.models import HostMapping
from compute.models import HostNeed, InstanceAction, Service
from tests.admin.conftest import EVIL, HOSTS, SERVICES, action, draining, host, staff, url
from tests.admin.test_pages import text
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
HTMX = {"HTTP_HX_REQUEST": "true"}


@pytest.fixture
def reader(cells):
    """May look, and no more."""
    return staff("ron", "view_hostmapping", "view_instancemapping")


def press(client, cell, service, verb, **fields):
    """Press a button as htmx does; the panel that comes back."""
    answer = client.post(url(cell, service), {"verb": verb, **fields}, **HTMX)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def stored(cell, service):
    with target_cell(cell):
        return Service.objects.get(uuid=service.uuid)


# -- the buttons


def test_drain_more_time_and_undrain(operator, cells):
    cell, service = cells["cell1"], host(cells["cell1"], "h1")

    panel = press(operator, cell, service, "drain", reason="new kernel", minutes="10", exit="on")
    row = stored(cell, service)
    assert (row.drain_wanted, row.drain_by, row.drain_reason) == (True, "admin:ann", "new kernel")
    assert row.drain_deadline - row.drain_asked_at == timedelta(minutes=10)
    assert row.drain_then_exit
    assert "Drain (10 min, then exit): new kernel" in panel
    assert 'value="undrain"' in panel
    assert 'value="extend"' in panel

    press(operator, cell, service, "extend", minutes="60")
    assert stored(cell, service).drain_deadline > row.drain_deadline + timedelta(minutes=45)
    press(operator, cell, service, "extend", minutes="")
    assert stored(cell, service).drain_deadline is None

    panel = press(operator, cell, service, "undrain")
    assert not stored(cell, service).drain_wanted
    assert 'value="drain"' in panel
    assert 'value="undrain"' not in panel

    said = list(LogEntry.objects.order_by("pk").values_list("user__name", "object_repr", "change_message"))
    assert said == [
        ("ann", "h1", "nova-compute@h1: drain (10 min, then exit): new kernel"),
        ("ann", "h1", "nova-compute@h1: drain deadline extended (60 min)"),
        ("ann", "h1", "nova-compute@h1: drain deadline extended (no deadline)"),
        ("ann", "h1", "nova-compute@h1: undrain: the service accepts work again"),
    ]


def test_without_javascript_the_buttons_work_too(operator, cells):
    cell, service = cells["cell1"], host(cells["cell1"], "h1")
    answer = operator.post(url(cell, service), {"verb": "drain", "reason": "new kernel"}, follow=True)
    assert stored(cell, service).drain_wanted
    page = answer.content.decode()
    assert "<html" in page
    assert "new kernel" in page


@pytest.mark.parametrize("verb", ["drain", "extend", "undrain"])
def test_who_may_only_look_has_no_buttons_and_cannot_do_without(reader, cells, verb):
    cell = cells["cell1"]
    service = draining(cell, "h1") if verb != "drain" else host(cell, "h1")
    before = stored(cell, service).drain_wanted
    for page in (text(reader, url(cell, service)), text(reader, HOSTS)):
        assert "<dialog" not in page
        assert 'name="verb"' not in page
    assert reader.post(url(cell, service), {"verb": verb}).status_code == 403
    assert stored(cell, service).drain_wanted is before
    assert not LogEntry.objects.exists()


def test_who_may_not_even_look(cells):
    service = host(cells["cell1"], "h1")
    nobody = staff("bob")
    for page in (SERVICES, url(cells["cell1"], service)):
        assert nobody.get(page).status_code == 403
        assert Client().get(page).status_code == 302


def test_another_site_cannot_press_the_buttons(operator, cells):
    cell, service = cells["cell1"], host(cells["cell1"], "h1")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(url(cell, service), {"verb": "drain"}, **HTMX).status_code == 403
    assert not stored(cell, service).drain_wanted


@pytest.mark.parametrize(
    ("verb", "fields", "said"),
    [
        ("drain", {"minutes": "-1"}, "greater than or equal to 0"),
        ("drain", {"minutes": "1e300"}, "less than or equal to"),
        ("drain", {"minutes": "nan"}, "Enter a number"),
        ("drain", {"reason": "x" * 256}, "at most 255 characters"),
        ("extend", {"minutes": "5"}, "is not draining"),
        ("explode", {}, "Unknown action."),
    ],
)
def test_what_makes_no_sense_changes_nothing_and_is_said(operator, cells, verb, fields, said):
    cell, service = cells["cell1"], host(cells["cell1"], "h1")
    assert said in press(operator, cell, service, verb, **fields)
    row = stored(cell, service)
    assert not row.drain_wanted
    assert row.drain_deadline is None
    assert not LogEntry.objects.exists()


def test_a_host_that_is_down_cannot_be_drained_but_undrained(operator, cells):
    cell, long_ago = cells["cell1"], timezone.now() - timedelta(hours=1)
    dead, undecided = host(cell, "h1", last_seen_up=long_ago), draining(cell, "h2", last_seen_up=long_ago)
    assert "h1 is down; it cannot be drained" in text(operator, url(cell, dead))
    press(operator, cell, dead, "drain")
    assert not stored(cell, dead).drain_wanted
    press(operator, cell, undecided, "undrain")
    assert not stored(cell, undecided).drain_wanted


def test_a_host_of_a_lost_cell_is_unknown_and_its_buttons_say_why(operator, cells, lost):
    HostMapping.objects.create(host="h9", cell=lost)
    page = text(operator, HOSTS)
    assert "? unknown" in page
    assert "Cell lost does not answer" in page
    assert "disabled title=&quot;Cell lost" in page or 'disabled title="Cell lost' in page
    gone = Service(uuid=str(uuid4()))
    assert "Cell lost does not answer" in text(operator, url(lost, gone))
    assert "Cell lost does not answer" in press(operator, lost, gone, "drain")
    assert operator.get(url(cells["cell1"], gone)).status_code == 404
    assert not LogEntry.objects.exists()


# -- what is seen


def test_wanted_and_seen_stand_side_by_side(operator, cells):
    now, cell = timezone.now(), cells["cell1"]
    draining(cell, "h1", in_progress=3)
    draining(cell, "h2", draining_since=None, drain_then_exit=True)  # it has not heard yet
    draining(cell, "h3", drained_at=now - timedelta(minutes=5))
    host(cell, "h4", ended_at=now)
    page = text(operator, HOSTS)
    for label in ("◌ draining, 3 left", "▽ drain", "▽ drain, then exit", "✓ drained", "■ stopped", "▲ up"):
        assert f"{label}</span>" in page
    assert "5\u00a0min\u00a00\u00a0s" in page
    assert "admin:ann: new kernel" in page
    assert page.count('x-init="rowOpen = true"') == 2  # what is drained needs no watching


def test_many_draining_rows_stay_folded(operator, cells):
    for number in range(4):
        draining(cells["cell1"], f"h{number}")
    assert 'x-init="rowOpen = true"' not in text(operator, HOSTS)


def test_a_draining_row_unfolds_to_what_holds_it_up(operator, cells):
    cell, now = cells["cell1"], timezone.now()
    service = draining(cell, "h1", drain_reason=EVIL)
    action(cell, str(uuid4()), host="h1", details="image 40 %", name="build", deadline=now + timedelta(minutes=3))
    action(cell, str(uuid4()), host="h1", started_at=now - timedelta(minutes=9))
    action(cell, str(uuid4()), host="h1", state="queued", details="NOT BEGUN")
    elsewhere = action(cell, str(uuid4()), host="h2", name="copy")
    with target_cell(cell):
        HostNeed.objects.create(action=elsewhere.action, host="h1")
        InstanceAction.objects.filter(pk=elsewhere.action_id).update(request_id="req-8")

    panel = operator.get(f"{url(cell, service)}?row=1", **HTMX).content.decode()

    assert "<html" not in panel
    assert "every 3s" in panel
    for said in ("image 40 %", "runs for more than five minutes", "step copy on h2", "1 (not begun"):
        assert said in panel
    assert "NOT BEGUN" not in panel
    assert EVIL not in panel
    for part in ("administrative-state", "operational-state", "waiting", "in-flight", "reason"):
        assert f'id="{part}-{service.uuid}" hx-swap-oob="true"' in panel


@pytest.mark.parametrize("over", ["taken back", "drained", "ended"])
def test_when_the_drain_is_over_nobody_asks_any_more(operator, cells, over):
    cell, now = cells["cell1"], timezone.now()
    columns = {
        "taken back": {"drain_wanted": False, "draining_since": None},
        "drained": {"drained_at": now},
        "ended": {"ended_at": now},
    }[over]
    service = draining(cell, "h1", **columns)
    panel = operator.get(url(cell, service), **HTMX).content.decode()
    assert "every 3s" not in panel
    assert "Refresh" in panel


def test_a_drain_that_was_taken_back_is_watched_until_the_process_has_heard_it(operator, cells):
    service = draining(cells["cell1"], "h1", drained_at=timezone.now())
    panel = press(operator, cells["cell1"], service, "undrain")
    assert "every 3s" in panel
    assert "✓ drained" in panel  # it has not heard it yet
    assert "A signal" not in panel
    assert 'value="drain"' in panel


def test_a_signal_can_be_given_more_time_but_not_taken_back(operator, cells):
    cell = cells["cell1"]
    service = draining(cell, "h1", drain_wanted=False, drain_by="SIGTERM", drain_reason="")
    panel = text(operator, url(cell, service))
    assert "The process got a stop signal" in panel
    assert 'value="undrain"' not in panel
    press(operator, cell, service, "extend", minutes="60")
    assert stored(cell, service).drain_deadline > timezone.now() + timedelta(minutes=55)


def test_conductors_and_schedulers_are_services_too(operator, cells):
    conductor = rows.service(cells["cell1"], "c1", "nova-conductor", in_progress=2)
    rows.service(cells["cell0"], "s1", "nova-scheduler", draining_since=timezone.now(), in_progress=7)
    page = text(operator, SERVICES)
    assert "nova-scheduler@s1" in page
    assert "draining, 7 left" in page

    press(operator, cells["cell1"], conductor, "drain", reason="upgrade")
    assert stored(cells["cell1"], conductor).drain_wanted
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.change_message) == (
        "cell1", "nova-conductor@c1: drain (no deadline): upgrade",
    )  # fmt: skip


def test_the_first_page_names_who_drains(browser, cells):
    draining(cells["cell1"], "h1", in_progress=3)
    for number in range(2, 14):
        draining(cells["cell2"], f"h{number}", drained_at=timezone.now())
    page = text(browser, "/admin/")
    assert "h1 (3 left)" in page
    assert "3 more drain" in page
