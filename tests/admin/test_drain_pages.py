"""Draining through the admin pages: what is wanted and seen, the buttons, and what holds a drain up."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db.backends.utils import CursorWrapper
from django.test import Client
from django.utils import timezone

from cells.context import target_cell
from cells.models import BuildRequest, HostMapping
from cloud.identity.models import User
from compute.models import HostNeed, InstanceAction, Service
from tests.admin.conftest import EVIL, action
from tests.admin.test_pages import text
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
HOSTS, PROGRESS = "/admin/cells/hostmapping/", "/admin/cells/instancemapping/in-progress/"
SERVICES = f"{HOSTS}services/"
HTMX = {"HTTP_HX_REQUEST": "true"}


def staff(name, *permissions):
    """The browser of somebody who may do this much."""
    user = User.objects.create_user(name, "secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(cells):
    """No superuser: may see and change hosts."""
    return staff("ann", "view_hostmapping", "change_hostmapping", "view_instancemapping")


@pytest.fixture
def reader(cells):
    """May look, and no more."""
    return staff("ron", "view_hostmapping", "view_instancemapping")


def host(cell, name, **columns):
    """A host with its place in a cell."""
    HostMapping.objects.create(host=name, cell=cell)
    return rows.service(cell, name, **columns)


def draining(cell, name, **columns):
    """A host that drains because ann wanted it."""
    now = timezone.now()
    wish = {"drain_wanted": True, "drain_by": "admin:ann", "drain_reason": "new kernel", "drain_asked_at": now}
    return host(cell, name, **(wish | {"draining_since": now} | columns))


def url(cell, service):
    return f"{SERVICES}{cell.id}/{service.uuid}/"


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
        ("ann", "h1", "nova-compute@h1: more time for the drain (60 min)"),
        ("ann", "h1", "nova-compute@h1: more time for the drain (as long as it takes)"),
        ("ann", "h1", "nova-compute@h1: undrain: it takes work again"),
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
        ("explode", {}, "There is no such button."),
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
    assert "h1 is down: there is nobody to drain" in text(operator, url(cell, dead))
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
    for label in ("◌ draining, 3 left", "▽ drain", "▽ drain, then exit", "✓ drained", "■ ended", "▲ up"):
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
    for said in ("image 40 %", "runs for more than five minutes", "step copy on h2", "1: nobody has begun"):
        assert said in panel
    assert "NOT BEGUN" not in panel
    assert EVIL not in panel
    for part in ("wanted", "seen", "waiting", "in-flight", "reason"):  # the row above is kept up to date as well
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
    assert "Look again" in panel


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
    assert "A signal told it to end" in panel
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
        "cell1", "nova-conductor@c1: drain (as long as it takes): upgrade",
    )  # fmt: skip


def test_the_first_page_names_who_drains(browser, cells):
    draining(cells["cell1"], "h1", in_progress=3)
    for number in range(2, 14):
        draining(cells["cell2"], f"h{number}", drained_at=timezone.now())
    page = text(browser, "/admin/")
    assert "h1 (3 left)" in page
    assert "3 more drain" in page


# -- what does not go on, and why


def test_waiting_steps_say_what_for(operator, cells):
    cell, long_ago = cells["cell1"], timezone.now() - timedelta(hours=2)
    draining(cell, "h1", drain_reason=EVIL)
    host(cell, "h2", last_seen_up=long_ago)
    host(cell, "h3", ended_at=timezone.now())
    host(cell, "h4")
    queued = {"state": "queued", "started_at": None}
    for name, host_name in (("for-drain", "h1"), ("for-dead", "h2"), ("for-ended", "h3"), ("for-turn", "h4")):
        action(cell, str(uuid4()), host=host_name, name=name, **queued)
    action(cell, str(uuid4()), host="h1", name="ops", lane="ops", **queued)
    action(cell, str(uuid4()), host="h2", name="orphan")
    action(cell, str(uuid4()), host="h4", name="again", **queued, not_before=timezone.now() + timedelta(hours=1))
    action(cell, str(uuid4()), host="", name="conduct", **queued)

    page = text(operator, PROGRESS)

    lines = {
        line.split("<td", 2)[1].split(">", 1)[1].split("<")[0].strip().removeprefix("reboot: "): line
        for line in page.split("<tr")
        if "reboot: " in line
    }
    assert "▽ draining</span> h1: &lt;script&gt;" in lines["for-drain"]
    assert "its turn on h1" in lines["ops"]  # begun work goes on
    assert "▼ down</span> h2" in lines["for-dead"]
    assert "▼ down</span> h2" in lines["orphan"]
    assert "▼ ended</span> h3" in lines["for-ended"]
    assert "its turn on h4" in lines["for-turn"]
    assert "its next try, in 59" in lines["again"]
    assert "no conductor is up" in lines["conduct"]
    assert EVIL not in page


def test_since_when_nothing_changed(operator, cells):
    cell, now = cells["cell1"], timezone.now()
    host(cell, "h1")
    action(
        cell, str(uuid4()), host="h1", queued_at=now - timedelta(hours=5), started_at=now - timedelta(hours=4),
        sent_at=now - timedelta(minutes=3), sends=9,
    )  # fmt: skip
    page = text(operator, PROGRESS)
    assert "5\u00a0h\u00a00\u00a0min" in page
    assert "4\u00a0h\u00a00\u00a0min" in page
    assert "3\u00a0min\u00a00\u00a0s" not in page  # it was sent again: that is no progress


def request(holder="", until=None, **columns):
    return BuildRequest.objects.create(
        server_id=str(uuid4()), project_id="p1", user_id="u1", request_id="req-1", created_at=timezone.now(),
        instance={"user_data": "TOP-SECRET"}, lease_holder=holder, lease_until=until, **columns,
    )  # fmt: skip


def test_schedulers_operations_are_the_servers_to_be_placed(operator, cells):
    now = timezone.now()
    request("s1/life", now + timedelta(seconds=90))
    request("s2/life", now - timedelta(seconds=1))
    request()
    page = text(operator, PROGRESS)
    assert "s1, whose lease ends in" in page
    assert "lease ran out" in page
    assert page.count("no scheduler is up") == 2
    assert "TOP-SECRET" not in page

    scheduler = rows.service(cells["cell0"], "s1", "nova-scheduler", draining_since=now)
    assert text(operator, PROGRESS).count("every scheduler drains") == 2
    rows.service(cells["cell0"], "s2", "nova-scheduler")
    assert "its turn" in text(operator, PROGRESS)
    panel = text(operator, url(cells["cell0"], scheduler))
    assert panel.count("create: place") == 1  # the lease that ran out is nobody's


# -- what it costs


@pytest.mark.parametrize("page", ["panel", SERVICES, PROGRESS, HOSTS, "/admin/"])
def test_a_page_costs_the_same_however_much_drains(browser, cells, page, monkeypatch):
    cell = cells["cell1"]
    service = draining(cell, "h1")
    path = url(cell, service) if page == "panel" else page

    def more(numbers):
        for number in numbers:
            if number > 1:
                draining(cell, f"h{number}")
            for state in ("running", "queued"):
                action(cell, str(uuid4()), host="h1", state=state)
            with target_cell(cell):
                HostNeed.objects.create(action=action(cell, str(uuid4()), host="h0").action, host="h1")
            request("s/l", timezone.now() + timedelta(minutes=1))

    asked: Counter[str] = Counter()
    really = CursorWrapper.execute

    def counted(cursor, *args):
        asked[cursor.db.alias] += 1
        return really(cursor, *args)

    monkeypatch.setattr(CursorWrapper, "execute", counted)  # cells are asked from other threads

    def cost() -> dict[str, int]:
        asked.clear()
        text(browser, path)
        return dict(asked)

    more([1])
    cost()
    before = cost()
    assert max(number for alias, number in before.items() if alias.startswith("cell:")) <= 5
    more(range(2, 12))
    assert cost() == before
