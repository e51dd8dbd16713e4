"""Every page says the truth, whichever cell is down, and runs nothing a user wrote."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

import pytest
from django.db.backends.utils import CursorWrapper
from django.test import Client
from django.utils import timezone

from cells.context import target_cell
from cells.models import BuildRequest, Cell, HostMapping, ServerSnapshot
from compute.models import Flavor, Instance, InstanceAction, KeyPair, Quota
from tests.admin.conftest import EVIL, action, furnish
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
PAGES = (
    "/admin/",
    "/admin/cells/cell/",
    "/admin/cells/hostmapping/",
    "/admin/cells/instancemapping/",
    "/admin/cells/instancemapping/in-progress/",
    "/admin/cells/buildrequest/",
    "/admin/compute/flavor/",
    "/admin/compute/quota/",
    "/admin/compute/keypair/",
)
SERVERS, HOSTS, CELLS = "/admin/cells/instancemapping/", "/admin/cells/hostmapping/", "/admin/cells/cell/"
GONE = "eeeeeeee-eeee-4eee-8eee-eeeeeeeeeeee"


def text(client: Client, path: str, **query: str) -> str:
    """The page, which must be there."""
    answer = client.get(path, query)
    assert answer.status_code == 200, answer
    return answer.content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_nobody_sees_anything_without_logging_in(cells, page):
    answer = Client().get(page)
    assert answer.status_code == 302
    assert "/admin/login/" in answer.url


@pytest.mark.parametrize("page", PAGES)
def test_every_page_works_empty_full_and_with_a_cell_down(browser, cells, page, request):
    text(browser, page)
    furnish(cells["cell1"], "h1")
    text(browser, page)
    down = request.getfixturevalue("lost")
    rows.mapping(down, GONE)
    HostMapping.objects.create(host="h9", cell=down)
    assert EVIL not in text(browser, page)


def test_a_server_of_a_lost_cell_is_unknown_since_then(browser, cells, lost):
    known = furnish(cells["cell1"], "h1")[0]
    rows.mapping(lost, GONE)
    page = text(browser, SERVERS)
    assert known in page
    assert "▶ active" in page.lower()
    assert "? UNKNOWN" in page
    assert "cell lost: missing: there is no such file" in page
    one = text(browser, f"{SERVERS}{GONE}/change/")
    assert "? UNKNOWN" in one
    assert "Cell lost does not answer" in one
    front = text(browser, "/admin/")
    assert "1 UNKNOWN" in front
    assert "1 server shows as UNKNOWN" in front


def test_a_host_of_a_lost_cell_is_unknown_not_down(browser, cells, lost):
    furnish(cells["cell1"], "h1")
    HostMapping.objects.create(host="h9", cell=lost)
    page = text(browser, HOSTS)
    assert "? unknown" in page
    assert "▲ up" in page
    assert "▼ down" not in page
    assert "127 / 128" in page  # amber: nearly full
    assert "h9" in text(browser, f"{HOSTS}{HostMapping.objects.get(host='h9').pk}/change/")


def test_one_server_shows_its_history_and_no_secrets(browser, cells):
    server = furnish(cells["cell1"], "h1")[0]
    action(cells["cell1"], server, state="failed", traceback=f"Traceback {EVIL}", details="it broke")
    with target_cell(cells["cell1"]):
        Instance.objects.filter(uuid=server).update(
            fault={"code": 500, "message": EVIL, "details": "deep", "created": "now"}, user_data="USER-DATA"
        )
    page = text(browser, f"{SERVERS}{server}/change/")
    for word in ("it broke", "Fault 500", "req-7", "deep", "Traceback", "&lt;script&gt;"):
        assert word in page
    for word in (EVIL, "TOP-SECRET", "USER-DATA", "PUBLIC-KEY"):
        assert word not in page
    progress = text(browser, f"{SERVERS}in-progress/")
    assert "TOP-SECRET" not in progress
    assert "&lt;script&gt;" in progress
    assert browser.get(f"{SERVERS}{GONE}/change/").status_code == 404


def test_servers_are_found_by_id_project_and_name(browser, cells, lost):
    web = rows.server(cells["cell1"], display_name="web-1")
    other = rows.server(cells["cell2"], display_name="db-1", project_id="p2")
    hidden = rows.server(cells["cell2"], display_name="old", queued=True)
    assert hidden.uuid not in text(browser, SERVERS)
    assert hidden.uuid in text(browser, SERVERS, queued="yes")
    assert hidden.uuid in text(browser, SERVERS, queued="all")
    for found, missed, query in (
        (web, other, {"q": "WEB"}), (other, web, {"q": "p2"}), (web, other, {"q": web.uuid[:8]}),
        (other, web, {"project_id": "p2"}), (other, web, {"cell__id__exact": cells["cell2"].id}),
    ):  # fmt: skip
        page = text(browser, SERVERS, **query)
        assert found.uuid in page, query
        assert missed.uuid not in page, query
    page = text(browser, SERVERS, q="web")
    assert "These cells do not answer and were searched by the last known names: lost" in page


def test_a_server_of_a_lost_cell_is_listed_and_found_as_what_it_was(browser, cells, lost):
    rows.mapping(lost, GONE)
    Cell.objects.filter(pk=lost.pk).update(swept_at=timezone.now() - timedelta(hours=2))
    ServerSnapshot.objects.create(
        server_id=GONE, cell=lost, name=f"web-9 {EVIL}", vm_state="active", host="h9", changed_at=timezone.now()
    )
    for query in ({}, {"q": "WEB-9"}):
        page = text(browser, SERVERS, **query)
        assert "? UNKNOWN" in page
        assert re.search(r"▶ was ACTIVE</span> 2\xa0h\xa00\xa0min ago", page)
        assert "(last known)" in page
        assert "h9 (last known)" in page
        assert EVIL not in page


def test_passwords_in_urls_are_never_shown(browser, cells):
    cell = cells["cell1"]
    cell.broker_url = "redis://:TOP-SECRET@127.0.0.1:1/0"
    cell.save()
    Cell.objects.create(id=GONE, name="broken", database_url="postgresql://u:TOP-SECRET@h:port/d")
    for page in ("/admin/", CELLS, f"{CELLS}{cell.id}/change/", f"{CELLS}{GONE}/change/"):
        assert "TOP-SECRET" not in text(browser, page)
    assert "redis://:****@127.0.0.1:1/0" in text(browser, f"{CELLS}{cell.id}/change/")


def test_the_page_of_cells_says_what_is_in_each_and_how_quickly_it_answers(browser, cells, lost, settings):
    settings.KEEP_OUTAGES = True
    furnish(cells["cell1"], "h1")
    rows.service(cells["cell1"], "h2", last_seen_up=timezone.now() - timedelta(hours=1))
    rows.server(cells["cell1"], vm_state="stopped")
    for number in range(3):
        rows.mapping(lost, f"{number}")
    page = text(browser, CELLS)
    assert "1 down, 1 up" in page
    assert "1 active" in page
    assert "1 stopped" in page
    assert "3 UNKNOWN" in page
    assert " ms" in page
    one = text(browser, f"{CELLS}{lost.pk}/change/")
    assert "3 servers show as UNKNOWN" in one
    assert "(missing: there is no such file): not queried. Probe" in one
    ours = r"\d\d UTC: down for \d+\xa0s \(missing: there is no such file\)\. Reported by .*manage on .*, pid \d+"
    assert re.search(ours, one)
    fine = text(browser, f"{CELLS}{cells['cell1'].pk}/change/")
    assert "closed: requests query the cell" in fine


def test_a_cell_is_closed_to_new_servers_and_opened_again(browser, cells):
    chosen = {"_selected_action": [cells["cell0"].id, cells["cell1"].id]}
    for verb, disabled in (("disable_cells", True), ("enable_cells", False)):
        assert browser.post(CELLS, chosen | {"action": verb}).status_code == 302
        cells["cell1"].refresh_from_db()
        assert cells["cell1"].disabled is disabled
        cells["cell0"].refresh_from_db()
        assert not cells["cell0"].disabled


@pytest.mark.parametrize("page", [CELLS, HOSTS, SERVERS])
def test_what_has_a_state_cannot_be_written(browser, cells, page):
    furnish(cells["cell1"], "h1")
    assert browser.get(f"{page}add/").status_code == 403
    row = {CELLS: cells["cell1"].id, HOSTS: HostMapping.objects.get().pk}.get(page, GONE)
    assert browser.post(f"{page}{row}/delete/", {"post": "yes"}).status_code in (302, 403)
    assert Cell.objects.count() == 3
    assert HostMapping.objects.count() == 1
    if page != SERVERS:
        assert browser.post(f"{page}{row}/change/", {"name": "x", "host": "x"}).status_code == 403


def test_offers_can_be_edited(browser, cells):
    flavor = {
        "name": "m1", "flavor_id": "1", "vcpus": 1, "memory_mb": 64, "disk_gb": 1, "ephemeral_gb": 0,
        "swap_mb": 0, "rxtx_factor": 1, "is_public": "on", "extra_specs": "{}", "access-TOTAL_FORMS": 0,
        "access-INITIAL_FORMS": 0,
    }  # fmt: skip
    assert browser.post("/admin/compute/flavor/add/", flavor | {"vcpus": 0}).status_code == 200
    assert browser.post("/admin/compute/flavor/add/", flavor | {"extra_specs": '{"a": 1}'}).status_code == 200
    assert browser.post("/admin/compute/flavor/add/", flavor).status_code == 302
    assert Flavor.objects.get().description is None
    quota = {"project_id": "p1", "resource": "cores", "limit": -1}
    assert browser.post("/admin/compute/quota/add/", quota | {"resource": "wishes"}).status_code == 200
    assert browser.post("/admin/compute/quota/add/", quota).status_code == 302
    assert Quota.objects.get().limit == -1


def test_key_pairs_and_requests_are_shown(browser, cells):
    key = KeyPair.objects.create(user_id="u1", name=EVIL, public_key="ssh-ed25519 A", fingerprint="aa:bb")
    BuildRequest.objects.create(
        server_id=GONE, project_id="p1", user_id="u1", request_id="req-1", created_at=timezone.now(),
        instance={"display_name": EVIL, "user_data": "TOP-SECRET"}, action={"image_ticket": "TOP-SECRET"},
    )  # fmt: skip
    for page in (
        "/admin/compute/keypair/", f"/admin/compute/keypair/{key.pk}/change/",
        "/admin/cells/buildrequest/", f"/admin/cells/buildrequest/{GONE}/change/", "/admin/",
    ):  # fmt: skip
        shown = text(browser, page)
        assert EVIL not in shown
        assert "TOP-SECRET" not in shown


@pytest.mark.parametrize("page", ["/admin/", CELLS, HOSTS, SERVERS, f"{SERVERS}in-progress/"])
def test_a_page_costs_the_same_whatever_it_lists(browser, cells, page, monkeypatch):
    furnish(cells["cell1"], "h1")
    asked: Counter[str] = Counter()
    really = CursorWrapper.execute

    def counted(cursor, *args):
        asked[cursor.db.alias] += 1
        return really(cursor, *args)

    monkeypatch.setattr(CursorWrapper, "execute", counted)  # cells are asked from other threads

    def cost() -> dict[str, int]:
        asked.clear()
        text(browser, page)
        return dict(asked)

    text(browser, page)
    before = cost()
    assert max(number for alias, number in before.items() if alias.startswith("cell:")) <= 5
    for number in range(2, 6):
        furnish(cells["cell1"], f"h{number}", servers=3)
    assert cost() == before


def test_a_long_list_has_pages(browser, cells):
    for _ in range(60):
        rows.server(cells["cell1"])
    assert text(browser, SERVERS).count("▶ ACTIVE") == 50
    assert text(browser, SERVERS, p="2").count("▶ ACTIVE") == 10
    for _ in range(110):
        action(cells["cell1"], GONE)
    assert "Page 1 of 2" in text(browser, f"{SERVERS}in-progress/")
    assert "Page 2 of 2" in text(browser, f"{SERVERS}in-progress/", p="2")


def test_a_host_of_machines_lists_those_that_are_not_in_use(browser, cells):
    mapping = HostMapping.objects.create(host="metal", cell=cells["cell1"])
    rows.service(cells["cell1"], "metal")
    whole = {"is_whole": True, "resource_class": "gold"}
    rows.node(cells["cell1"], "metal", hypervisor_hostname="n1", vcpus_used=8, **whole)
    rows.node(cells["cell1"], "metal", hypervisor_hostname="n2", out_of_use="maintenance: fan <broken>", **whole)
    page = browser.get(f"{HOSTS}{mapping.pk}/change/").content.decode()
    assert "2 nodes, 1 taken, 1 out of use<br>n2: maintenance: fan &lt;broken&gt;" in page


def test_the_page_of_a_server_says_who_is_right_about_its_power(browser, cells):
    said, not_said = furnish(cells["cell1"], "h1", 2)
    with target_cell(cells["cell1"]):
        Instance.objects.filter(uuid=said).update(metadata={"power_truth": "database"})
        InstanceAction.objects.filter(server_id=said).update(key="PowerFlaps")
    page = text(browser, f"{SERVERS}{said}/change/")
    assert "database, set by its metadata" in page
    assert "✖ suspended" in page
    page = text(browser, f"{SERVERS}{not_said}/change/")
    assert "setting of its host" in page
    assert "suspended" not in page
