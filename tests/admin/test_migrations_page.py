"""The page of migrations: all cells, the newest first, how far they are, and what can be said to them."""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import replace

import pytest
from django.contrib.admin.models import LogEntry
from django.db.backends.utils import CursorWrapper

from cells import circuit_breaker
from cells.context import target_cell
from compute.admin import migrations
from compute.migration.moves import MoveParams
from compute.models import InstanceAction
from compute.operations import journal
from compute.virt.base import Progress
from tests.admin.conftest import EVIL, staff
from tests.admin.test_pages import text
from tests.flow import stories, two_hosts
from tests.flow.stories import act, states
from tests.flow.test_migrations import logged, on_its_way
from tests.flow.two_hosts import LIVE, booted, homes, until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
PAGE = "/admin/cells/instancemapping/migrations/"


def rows(page):
    """Rows of the table, as words."""
    found = []
    for row in page.split("<tr")[2:]:
        cells = re.findall(r"<td.*?</td>", row, re.DOTALL)
        plain = [re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", cell))).strip() for cell in cells]
        found.append(plain)
    return found


def buttons(page):
    tags = [tag for tag in re.findall(r"<button[^>]*>", page) if 'name="verb"' in tag]
    return [re.search(r'value="([^"]+)"', tag)[1] for tag in tags]


def press(browser, cloud, server_id, verb):
    row = two_hosts.action_of(cloud, server_id)
    fields = {"verb": verb, "server": server_id, "migration": str(row.pk)}
    return html.unescape(browser.post(PAGE, fields, follow=True).content.decode())


@pytest.mark.parametrize("body", [LIVE, {"migrate": None}], ids=["live", "cold"])
def test_a_completed_migration_shows_that_all_of_it_is_there(body, browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, body)
    cloud.work()
    with target_cell(cloud.cells["cell1"]):  # as the last report before the end of the copy leaves it
        left = Progress(memory_total=512 << 20, memory_left=20 << 20)
        action = two_hosts.action_of(cloud, server_id)
        journal.change_params(action, MoveParams, lambda params: replace(params, progress=left))
    page = text(browser, PAGE)
    assert rows(page)[0][5] == "100 % 100 %"
    assert 'title="memory 512 of 512 MiB"' in page


def test_it_is_in_the_menu_and_empty_at_first(browser, cells):
    page = text(browser, PAGE)
    assert "No migrations." in page
    assert f'href="{PAGE}"' in text(browser, "/admin/")


def test_a_live_migration_on_its_way(browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    [waits] = rows(text(browser, PAGE))
    assert waits[1:5] == ["live-migration", "◌ accepted", "host1", "-"]
    assert buttons(text(browser, PAGE)) == ["abort"]
    with on_its_way(cloud, server_id):
        page = text(browser, PAGE)
        [row] = rows(page)
        assert row[1:5] == ["live-migration", "◌ running", "host1", "host3"]
        assert re.fullmatch(r"\d+ % \d+ %", row[5])
        assert re.search(r'title="memory \d+ of 512 MiB"><progress max="100" value="\d+"', page)
        assert row[6] == "migrate_out on host1, running"
        assert buttons(page) == ["abort", "force"]
        assert "every 2s" in page
        assert "abort was accepted." in press(browser, cloud, server_id, "abort")
    cloud.work()
    page = text(browser, PAGE)
    assert rows(page)[0][2] == "× cancelled"
    assert not buttons(page)
    assert "every 10s" in page
    assert homes(cloud, server_id) == ["host1"]
    assert stories.last_action(admin, server_id)["action"] == "live_migration_cancel"
    assert "abort of migration" in LogEntry.objects.get().change_message


def test_one_that_runs_is_made_to_end(browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    with on_its_way(cloud, server_id):
        assert "force was accepted." in press(browser, cloud, server_id, "force")
    cloud.work()
    assert rows(text(browser, PAGE))[0][2] == "✓ completed"
    assert homes(cloud, server_id) == ["host3"]


@pytest.mark.parametrize(("verb", "status", "home"), [
    ("confirmResize", "✓ confirmed", "host3"), ("revertResize", "↩ reverted", "host1"),
])  # fmt: skip
def test_a_resized_server_waits_for_a_word(verb, status, home, browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, {"migrate": None})
    cloud.work()
    page = text(browser, PAGE)
    assert rows(page)[0][1:5] == ["migration", "⇄ finished", "host1", "host3"]
    assert buttons(page) == ["confirmResize", "revertResize"]
    assert f"{verb} was accepted." in press(browser, cloud, server_id, verb)
    busy = text(browser, PAGE)
    assert not buttons(busy)
    assert busy.count("the server is busy (task state resize_") == 2
    cloud.work()
    assert rows(text(browser, PAGE))[0][2] == status
    assert homes(cloud, server_id) == [home]
    assert states(cloud, server_id) == ("active", None)


def test_what_cannot_be_said_any_more_is_refused_in_words(browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    cloud.work()
    said = press(browser, cloud, server_id, "abort")
    assert f"abort was refused: Cannot 'abort live migration' instance {server_id}" in said
    assert "Unknown action." in press(browser, cloud, server_id, "os-stop")
    assert states(cloud, server_id) == ("active", None)
    gone = browser.post(PAGE, {"verb": "abort", "server": "nobody"}, follow=True).content.decode()
    assert "No such server." in gone


def test_filters_and_pages(browser, cloud, monkeypatch):
    monkeypatch.setattr(migrations, "PER_PAGE", 3)
    logged(cloud, "cell1", 4, seconds=10, params={"source": "a"})
    logged(cloud, "cell2", 3, key="Resize")
    first = text(browser, PAGE)
    older = html.unescape(re.search(r'href="\?([^"]+)">older', first)[1])
    second = text(browser, f"{PAGE}?{older}")
    assert [row[1] for row in rows(first)] == ["resize"] * 3
    assert [row[1] for row in rows(second)] == ["live-migration"] * 3
    assert "‹ newest" in second
    assert len(rows(text(browser, PAGE, host="a"))) == 3
    assert len(rows(text(browser, PAGE, status="finished"))) == 3
    assert not rows(text(browser, PAGE, status="running"))
    assert not rows(text(browser, PAGE, kind="evacuation"))
    narrowed = text(browser, PAGE, kind="live-migration")
    assert "kind=live-migration&amp;after=" in narrowed
    lost = browser.get(f"{PAGE}?after=nowhere", follow=True)
    assert "marker [nowhere] not found" in lost.content.decode()


def test_a_cell_that_is_down_is_named(browser, cloud):
    logged(cloud, "cell1", 1)
    logged(cloud, "cell2", 1)
    circuit_breaker.record_failure(cloud.cells["cell2"].id, "cut off")
    page = text(browser, PAGE)
    assert "Cell cell2 does not answer (cut off" in page
    assert len(rows(page)) == 1


def test_who_may_only_look_has_no_buttons_and_cannot_do_without(admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    ron = staff("ron", "view_instancemapping")
    assert not buttons(text(ron, PAGE))
    row = two_hosts.action_of(cloud, server_id)
    fields = {"verb": "abort", "server": server_id, "migration": str(row.pk)}
    assert ron.post(PAGE, fields).status_code == 403
    assert "abort" not in InstanceAction.objects.using(row._state.db).get(pk=row.pk).params
    assert staff("bob").get(PAGE).status_code == 403


def test_nothing_secret_and_nothing_a_user_wrote_is_run(browser, admin, cloud):
    server_id = booted(admin, cloud)
    act(admin, server_id, LIVE)
    until(cloud, "migrate_out")
    row = two_hosts.action_of(cloud, server_id)
    with target_cell(cloud.cells["cell1"]):
        journal.change_params(
            row, MoveParams, lambda params: replace(params, host=EVIL, arrival={"key": "TOP-SECRET"}, source=EVIL)
        )
    page = text(browser, PAGE)
    assert "TOP-SECRET" not in page
    assert EVIL not in page
    assert "&lt;script&gt;" in page


def test_many_migrations_cost_as_many_queries_as_few(browser, cloud, monkeypatch):
    asked, really = Counter(), CursorWrapper.execute

    def counted(cursor, *args):
        asked[cursor.db.alias] += 1
        return really(cursor, *args)

    monkeypatch.setattr(CursorWrapper, "execute", counted)

    def cost():
        asked.clear()
        text(browser, PAGE)
        return dict(asked)

    for cell in ("cell1", "cell2"):
        logged(cloud, cell, 1)
        logged(cloud, cell, 1, key="Resize")
    cost()
    few = cost()
    for cell in ("cell1", "cell2"):
        logged(cloud, cell, 15, seconds=60)
        logged(cloud, cell, 15, seconds=60, key="Resize")
    assert cost() == few
