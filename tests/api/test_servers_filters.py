"""The query string of GET /servers: what each filter finds, and who may use it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.api.servers import BORN, IMAGE, server, unplaced
from tests.conftest import OTHER_PROJECT, PROJECT

ADDRESS = {"net": [{"version": 4, "addr": "10.0.2.15", "OS-EXT-IPS-MAC:mac_addr": "52:54:00:00:00:01",
                    "OS-EXT-IPS:type": "fixed"}]}  # fmt: skip


def names(answer):
    assert answer.status_code == 200, answer.content
    return sorted(found["name"] for found in answer.json()["servers"])


def message(answer, status=400):
    assert answer.status_code == status, answer.content
    return next(iter(answer.json().values()))["message"]


@pytest.fixture
def fleet(cells):
    """Servers that differ in everything a filter asks for."""
    one, two = cells["cell1"], cells["cell2"]
    server(one, "web-1", tags=",red,blue,", addresses=ADDRESS, key_name="mine", reservation_id="r-7")
    server(two, "web-2", age=10, tags=",red,", vm_state="stopped", power_state=4, locked_by="owner", flavor_id="2")
    server(two, "Web-3", age=20, tags=",blue,", task_state="rebooting", host="host2", image_id="", user_id="other")
    server(cells["cell0"], "failed", age=30)
    server(one, "gone", age=40, deleted=True, vm_state="deleted", host="", updated_at=BORN)
    unplaced("web-new", age=50, tags=",new,", key_name="mine")


FOUND = [
    ("name=web", ["web-1", "web-2", "web-new"]),
    ("name=^web-[12]$", ["web-1", "web-2"]),
    ("name=eb-3", ["Web-3"]),
    ("name=WEB", []),
    ("name=web-1&name=failed", ["failed", "web-1"]),
    ("name=", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    ("name=100%25_", []),
    ("status=ACTIVE", ["web-1"]),
    ("status=active", ["web-1"]),
    ("status=SHUTOFF&status=ERROR", ["failed", "web-2"]),
    ("status=REBOOT", ["Web-3"]),
    ("status=BUILD", ["web-new"]),
    ("status=BUILD&name=web-1", []),
    ("tags=red", ["web-1", "web-2"]),
    ("tags=red,blue", ["web-1"]),
    ("tags=RED", []),
    ("tags=re", []),
    ("tags-any=red,new", ["web-1", "web-2", "web-new"]),
    ("not-tags=red,blue", ["Web-3", "failed", "web-2", "web-new"]),
    ("not-tags-any=red,blue", ["failed", "web-new"]),
    (f"image={IMAGE}", ["failed", "web-1", "web-2", "web-new"]),
    ("flavor=2", ["web-2"]),
    ("locked=true", ["web-2"]),
    ("locked=0", ["Web-3", "failed", "web-1", "web-new"]),
    ("ip=10.0.2.15", ["web-1"]),
    ("ip=^10\\.0", ["web-1"]),
    ("ip=^10\\.0\\.2\\.15$", ["web-1"]),
    ("ip=^0\\.2", []),
    ("ip=52:54", []),
    ("ip=fixed", []),
    ("ip6=2001", []),
    ("reservation_id=r-7", ["web-1"]),
    ("key_name=mine", ["web-1", "web-new"]),
    ("vm_state=building", ["web-new"]),
    ("task_state=rebooting", ["Web-3"]),
    ("power_state=4", ["web-2"]),
    ("power_state=99999999999999999999", []),
    ("power_state=x", []),
    ("user_id=other", ["Web-3"]),
    ("hostname=web-1", ["web-1"]),
    ("availability_zone=nova", ["Web-3", "failed", "web-1", "web-2"]),
    ("config_drive=true", []),
    ("created_at=2026-01-01T12:00:00.250000Z", ["web-1"]),
    ("launched_at=2026-01-01T11:50:00.25Z", ["web-2"]),
    ("terminated_at=2026-01-01", []),
    ("progress=0&vm_state=stopped", ["web-2"]),
    ("changes-since=2026-01-01T11:55:00Z", ["gone", "web-1"]),
    ("changes-before=2026-01-01T11:35:00Z", ["failed", "web-new"]),
    ("changes-since=2026-01-01T11:35:00Z&changes-before=2026-01-01T11:55:00Z", ["Web-3", "web-2"]),
    # forbidden for a member: dropped
    ("host=host2", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    ("deleted=true", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    ("node=x&uuid=y&launch_index=7", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    (f"project_id={OTHER_PROJECT}", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    ("all_tenants=0", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
]


def test_every_filter_finds_what_it_names(api, fleet):
    wrong = {query: (names(api.get(f"/servers?{query}")), found) for query, found in FOUND}
    assert {query: both for query, both in wrong.items() if both[0] != both[1]} == {}


ADMINS = [
    ("deleted=true", ["gone"]),
    ("deleted=false", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    ("status=deleted", ["gone"]),
    ("changes-since=2026-01-01T11:55:00Z&deleted=false", ["web-1"]),
    ("host=host2", ["Web-3"]),
    ("node=host1", ["Web-3", "web-1", "web-2"]),
    ("display_name=^web-1$", ["web-1"]),
    ("launch_index=0&vm_state=stopped", ["web-2"]),
    (f"project_id={PROJECT}", ["Web-3", "failed", "web-1", "web-2", "web-new"]),
    (f"tenant_id={OTHER_PROJECT}", ["theirs"]),
    (f"project_id={OTHER_PROJECT}", ["theirs"]),
]


def test_an_admins_filters_find_what_they_name(admin, fleet, cells):
    server(cells["cell1"], "theirs", age=99, project_id=OTHER_PROJECT, node="n", host="h", launch_index=1)
    scope = f"all_tenants=1&project_id={PROJECT}&"
    wrong = {}
    for query, found in ADMINS:
        mine = "all_tenants=1&" if "project_id=" in query or "tenant_id=" in query else scope
        wrong[query] = (names(admin.get(f"/servers?{mine}{query}")), found)
    assert {query: both for query, both in wrong.items() if both[0] != both[1]} == {}


def test_servers_of_all_projects_are_the_admins_to_see(api, admin, stranger, fleet, cells):
    server(cells["cell1"], "theirs", project_id=OTHER_PROJECT)
    for word in ("1", "true", "", "yes"):
        answer = api.get(f"/servers?all_tenants={word}")
        assert message(answer, 403) == (
            "Policy doesn't allow os_compute_api:servers:index:get_all_tenants to be performed."
        )
        assert "theirs" in names(admin.get(f"/servers?all_tenants={word}"))
    assert message(api.get("/servers/detail?all_tenants=1"), 403)
    assert names(admin.get(f"/servers?project_id={PROJECT}")) == []  # means nothing without all_tenants
    assert message(admin.get("/servers?all_tenants=maybe")).startswith("Invalid input for query parameters")


def test_deleted_servers_are_the_admins_to_list(api, fleet):
    assert message(api.get("/servers?status=deleted"), 403) == "Only administrators may list deleted instances"


def test_a_status_nobody_has_is_an_empty_list_and_since_238_an_error(api, fleet):
    assert names(api.get("/servers?status=BAD", version="2.37")) == []
    assert names(api.get("/servers?status=BAD&status=ACTIVE", version="2.37")) == ["web-1"]
    assert message(api.get("/servers?status=BAD", version="2.38")) == "Invalid status value"


@pytest.mark.parametrize("pattern", ["[", "(", "a{99999999999}", "(a+)+$", "(a|a)*b", ".*" * 9, "x" * 300])
def test_a_pattern_that_is_wrong_or_takes_hours_is_refused(api, pattern):
    assert message(api.get("/servers", {"name": pattern})).startswith("Invalid filter:")
    assert message(api.get("/servers", {"ip": pattern})).startswith("Invalid filter:")


@pytest.mark.parametrize(
    "query",
    ["changes-since=yesterday", "changes-since=2026-13-01", "changes-before=x", "created_at=1",
     "changes-since=9999-12-31T23:59:59-23:59", "changes-since=", "launched_at=2026-02-30"],
)  # fmt: skip
def test_a_time_that_is_none_is_refused(api, query):
    assert "is not a 'date-time'" in message(api.get(f"/servers?{query}"))


def test_a_span_that_ends_before_it_begins_is_refused(api):
    answer = api.get("/servers?changes-since=2026-01-02T00:00:00Z&changes-before=2026-01-01T00:00:00Z")
    assert message(answer) == "The value of changes-since must be less than or equal to changes-before."


def test_a_parameter_nobody_knows_is_ignored_and_since_275_an_error(api, fleet):
    assert len(names(api.get("/servers?colour=red", version="2.74"))) == 5
    assert "('colour' was unexpected)" in message(api.get("/servers?colour=red", version="2.75"))


@pytest.mark.parametrize(("query", "since"), [("tags=red", "2.26"), ("locked=true", "2.73"), ("user_id=other", "2.83"),
                                              ("changes-before=2026-01-01T11:35:00Z", "2.66")])  # fmt: skip
def test_a_filter_means_nothing_before_its_microversion(api, fleet, query, since):
    before = f"2.{int(since[2:]) - 1}"
    answer = api.get(f"/servers?{query}", version=before)
    if int(since[2:]) - 1 < 75 or query.startswith("user_id"):
        assert len(names(answer)) == 5
    assert len(names(api.get(f"/servers?{query}", version=since))) < 5


def test_changes_since_finds_what_was_deleted_meanwhile(api, cells):
    server(cells["cell1"], "gone", deleted=True, vm_state="deleted", host="", updated_at=BORN + timedelta(hours=1))
    found = api.get(f"/servers/detail?changes-since={(BORN + timedelta(minutes=30)).isoformat()[:19]}Z")
    assert [(s["name"], s["status"]) for s in found.json()["servers"]] == [("gone", "DELETED")]
