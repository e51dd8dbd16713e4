"""What does not go on and why, on the page of actions in progress; and what pages cost while hosts drain."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from cells.context import target_cell
from cells.models import BuildRequest
from compute.models import HostNeed
from tests.admin.conftest import EVIL, HOSTS, PROGRESS, SERVICES, action, draining, host, url
from tests.admin.test_pages import text
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_waiting_steps_say_what_for(operator, cells):
    cell, long_ago = cells["cell1"], timezone.now() - timedelta(hours=2)
    draining(cell, "h1", drain_reason=EVIL)
    host(cell, "h2", last_seen_up=long_ago)
    host(cell, "h3", ended_at=timezone.now())
    host(cell, "h4")
    queued = {"state": "queued", "started_at": None}
    for name, host_name in (("for-drain", "h1"), ("for-dead", "h2"), ("for-ended", "h3"), ("for-turn", "h4")):
        action(cell, str(uuid4()), host=host_name, name=name, **queued)
    action(cell, str(uuid4()), host="h1", name="ops", queue="ops", **queued)
    action(cell, str(uuid4()), host="h2", name="orphan")
    action(cell, str(uuid4()), host="h4", name="again", **queued, not_before=timezone.now() + timedelta(minutes=90))
    action(cell, str(uuid4()), host="", name="conduct", **queued)

    page = text(operator, PROGRESS)

    lines = {
        line.split("<td", 2)[1].split(">", 1)[1].split("<")[0].strip().removeprefix("reboot: "): line
        for line in page.split("<tr")
        if "reboot: " in line
    }
    assert "▽ draining</span> h1: &lt;script&gt;" in lines["for-drain"]
    assert "a worker of h1" in lines["ops"]  # begun work goes on
    assert "▼ down</span> h2" in lines["for-dead"]
    assert "▼ down</span> h2" in lines["orphan"]
    assert "▼ stopped</span> h3" in lines["for-ended"]
    assert "a worker of h4" in lines["for-turn"]
    assert "its next attempt, in 1\xa0h" in lines["again"]
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
    assert "s1, lease expires in" in page
    assert "lease expired" in page
    assert page.count("no scheduler is up") == 2
    assert "TOP-SECRET" not in page

    scheduler = rows.service(cells["cell0"], "s1", "nova-scheduler", draining_since=now)
    assert text(operator, PROGRESS).count("every scheduler is draining") == 2
    rows.service(cells["cell0"], "s2", "nova-scheduler")
    assert "a scheduler" in text(operator, PROGRESS)
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
    assert max(number for alias, number in before.items() if alias.startswith("cell:")) <= 6
    more(range(2, 12))
    assert cost() == before
