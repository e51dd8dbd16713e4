"""The pages of aggregates and server groups."""

from __future__ import annotations

from compute.models import Aggregate, ServerGroup
from tests.admin.conftest import EVIL, staff
from tests.cells import rows

AGGREGATES, GROUPS = "/admin/compute/aggregate/", "/admin/compute/servergroup/"


def text(browser, path):
    answer = browser.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


def test_an_aggregate_shows_its_zone_hosts_and_metadata(browser):
    made = Aggregate.objects.create(name="ssd", metadata={"availability_zone": "east", "rack": EVIL})
    for host in ("h2", "h1"):
        made.hosts.create(host=host)
    for page in (text(browser, AGGREGATES), text(browser, f"{AGGREGATES}{made.pk}/change/")):
        for word in ("ssd", "east", "h1, h2", "rack=&lt;script&gt;"):
            assert word in page
        assert EVIL not in page
    assert browser.get(f"{AGGREGATES}add/").status_code == 403
    assert "No results" not in text(browser, f"{AGGREGATES}?q=h1")


def test_a_group_shows_its_policy_home_and_members(browser, cells):
    made = ServerGroup.objects.create(name=EVIL, policy="affinity", project_id="p1", user_id="u1", host="h7")
    server = rows.server(cells["cell1"])
    made.members.create(server_id=server.uuid)
    page = text(browser, GROUPS)
    for word in ("affinity", "p1", "h7"):
        assert word in page
    one = text(browser, f"{GROUPS}{made.pk}/change/")
    assert server.uuid in one
    assert EVIL not in page + one


def test_only_who_may_see_them_sees_them(cells):
    nobody, somebody = staff("nobody"), staff("somebody", "view_aggregate")
    assert nobody.get(AGGREGATES).status_code == 403
    assert somebody.get(AGGREGATES).status_code == 200
    assert somebody.get(GROUPS).status_code == 403
    assert "Aggregates" in text(somebody, AGGREGATES)
