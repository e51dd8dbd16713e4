"""The page of a server offers what can be done now, says why the rest cannot, and asks as the API does."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin.models import LogEntry

from cells import circuit_breaker
from cells.context import target_cell
from cloud.images.models import Image
from compute.admin import allowed_actions
from compute.contract import microversion
from compute.models import Flavor
from compute.operations import registry
from compute.servers import deferred_deletes
from tests.admin.conftest import staff
from tests.admin.test_pages import text
from tests.conftest import PROJECT
from tests.flow import stories, two_hosts
from tests.flow.stories import act, states

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
ALWAYS = {"forceDelete", "lock", "os-resetState", "unlock"}
RUNS = {
    "createBackup", "createImage", "migrate", "os-migrateLive", "os-stop", "pause", "reboot", "rebuild", "rescue",
    "resize", "shelve", "suspend",
}  # fmt: skip
LEGAL = {
    "active": RUNS,
    "stopped": {
        "createBackup", "createImage", "migrate", "os-start", "reboot", "rebuild", "rescue", "resize", "shelve",
    },
    "paused": {"createBackup", "createImage", "os-migrateLive", "reboot", "shelve", "unpause"},
    "suspended": {"createBackup", "createImage", "reboot", "resume", "shelve"},
    "resized": {"confirmResize", "revertResize"},
    "soft-delete": {"restore"},
    "error": {"os-stop", "reboot", "rebuild", "rescue"},
}
LEADS = {"stopped": ("stop",), "paused": ("pause",), "suspended": ("suspend",)}
BODIES = {
    "reboot": {"type": "HARD"}, "createImage": {"name": "x"}, "createBackup": {"name": "x", "backup_type": "d",
    "rotation": 1}, "os-migrateLive": {"host": None, "block_migration": "auto"}, "evacuate": {},
    "os-resetState": {"state": "error"}, "resize": {"flavorRef": "2"}, "rebuild": {"imageRef": "?"},
}  # fmt: skip


@pytest.fixture
def page(cloud, browser):
    """How to read a server's page."""
    return lambda server_id: text(browser, url(server_id))


@pytest.fixture(autouse=True)
def _kept_when_deleted(settings):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600


def url(server_id):
    return f"/admin/cells/instancemapping/{server_id}/change/"


def in_state(state, admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    stories.lead(admin, cloud, server_id, LEADS.get(state, ()))
    if state == "resized":
        act(admin, server_id, {"migrate": None})
    elif state == "soft-delete":
        admin.delete(f"/servers/{server_id}")
    elif state == "error":
        act(admin, server_id, {"os-resetState": {"state": "error"}})
    cloud.work()
    assert states(cloud, server_id) == (state, None)
    return server_id


def offered(page):
    """Keys of the buttons that can be pressed."""
    tags = [tag for tag in re.findall(r"<button[^>]*>", page) if 'name="verb"' in tag]
    return {re.search(r'value="([^"]+)"', tag)[1] for tag in tags}


def reasons(page):
    """What the others say, by name."""
    found = re.findall(r'<button type="button" disabled title="([^"]+)"[^>]*>([^<]+)<', page)
    return {name: html.unescape(reason) for reason, name in found}


@pytest.mark.parametrize("state", LEGAL)
def test_what_is_offered_in_every_state_and_what_is_not_is_refused_by_the_api(state, admin, cloud, page):
    server_id = in_state(state, admin, cloud)
    shown = page(server_id)
    assert offered(shown) - ALWAYS == LEGAL[state]
    others = reasons(shown)
    keys = {action.key for action in registry.every().values() if not action.reads_only} - {""}
    assert {f"{key.removeprefix('os-')}" for key in keys - LEGAL[state] - ALWAYS} == set(others)
    before = len(cloud.history(server_id))
    for key in sorted(keys - LEGAL[state] - ALWAYS):
        body = {key: BODIES.get(key) if key != "rebuild" else {"imageRef": cloud.image.id}}
        answer = act(admin, server_id, body)
        assert answer.status_code in (400, 409), (key, answer.content)
    assert len(cloud.history(server_id)) == before


def test_a_reason_is_said_in_words(admin, cloud, page):
    server_id = two_hosts.booted(admin, cloud)
    why = reasons(page(server_id))
    assert why["start"] == "the server is active; the action requires stopped"
    assert why["restore"] == "the server is active; the action requires soft-delete"
    assert why["evacuate"] == "Compute service of host1 is still in use"
    act(admin, server_id, {"pause": None})
    why = reasons(page(server_id))
    assert why["stop"] == "the server is busy (task state pausing)"
    assert "restore" in why
    # a hard reboot; and what an operator may do with a step that does not go on
    assert offered(page(server_id)) - ALWAYS == {"reboot", "retry-step", "give-up-step"}


def test_a_host_that_drains_is_said(admin, cloud, page):
    server_id = two_hosts.booted(admin, cloud)
    two_hosts.drain(cloud, "host1")
    assert "host1 is draining" in reasons(page(server_id))["migrateLive"]


def test_a_lock_and_a_role_are_said(admin, api, reader, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"lock": None})
    row = cloud.row(server_id)
    with target_cell(cloud.cell_of(server_id)):
        stop = registry.keyed("os-stop", microversion.MAXIMUM)
        assert allowed_actions.why_not(stop, row, api.caller) == "the server is locked by its owner"
        assert allowed_actions.why_not(stop, row, admin.caller) == ""
        needs = "it requires the role member in the project, or admin"
        assert allowed_actions.why_not(stop, row, reader.caller) == needs
        evacuate = registry.keyed("evacuate", (2, 96))
        assert allowed_actions.why_not(evacuate, row, api.caller) == "it requires the role admin"


def test_a_button_asks_as_the_api_does(admin, cloud, browser):
    server_id = two_hosts.booted(admin, cloud)
    answer = browser.post(url(server_id), {"verb": "os-stop"}, follow=True)
    assert "stop was accepted." in answer.content.decode()
    assert states(cloud, server_id) == ("active", "powering-off")
    again = browser.post(url(server_id), {"verb": "os-stop"}, follow=True).content.decode()
    refused = f"stop was refused: Cannot &#x27;stop&#x27; instance {server_id} while it is in task_state powering-off"
    assert refused in again
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["stop"]
    asked = cloud.history(server_id)[-1]
    assert (asked.action, asked.message) == ("stop", None)
    assert asked.user_id == str(LogEntry.objects.get().user_id)
    assert asked.request_id.startswith("req-")


def test_buttons_with_something_to_say(admin, cloud, browser, page):
    Flavor.objects.create(flavor_id="2", name="m1.small", vcpus=2, memory_mb=1024, disk_gb=2, extra_specs={})
    server_id = two_hosts.booted(admin, cloud)
    shown = page(server_id)
    assert "m1.small: 2 CPUs, 1024 MiB, 2 GiB" in shown
    assert "host3" in shown
    said = browser.post(url(server_id), {"verb": "createImage"}, follow=True).content.decode()
    assert "name: This field is required." in said
    browser.post(url(server_id), {"verb": "createImage", "name": "by hand"})
    cloud.work()
    assert Image.objects.get(name="by hand").owner == cloud.row(server_id).project_id
    for verb, fields, end in (
        ("os-migrateLive", {"host": "", "block_migration": "auto"}, ("active", "host3")),
        ("os-migrateLive", {"host": "host1", "block_migration": "auto"}, ("active", "host1")),
        ("reboot", {"type": "HARD"}, ("active", "host1")),
        ("createBackup", {"name": "b", "backup_type": "daily", "rotation": "1"}, ("active", "host1")),
        ("lock", {"locked_reason": "mine"}, ("active", "host1")),
        ("unlock", {}, ("active", "host1")),
        ("migrate", {"host": ""}, ("resized", "host3")),
        ("revertResize", {}, ("active", "host1")),
        ("resize", {"flavorRef": "2"}, ("resized", "host3")),
        ("confirmResize", {}, ("active", "host3")),
        ("rebuild", {"imageRef": cloud.image.id}, ("active", "host3")),
        ("os-resetState", {"state": "error"}, ("error", "host3")),
        ("forceDelete", {}, ("deleted", "host3")),
    ):
        answer = browser.post(url(server_id), {"verb": verb, **fields}, follow=True)
        assert f"{verb.removeprefix('os-')} was accepted." in answer.content.decode(), verb
        cloud.work()
        row = cloud.row(server_id)
        assert (row.vm_state, row.host) == end, verb


@pytest.mark.parametrize("verb", ["nonsense", "os-getConsoleOutput", ""])
def test_what_is_no_button_does_nothing(verb, admin, cloud, browser):
    server_id = two_hosts.booted(admin, cloud)
    before = len(cloud.history(server_id))
    browser.post(url(server_id), {"verb": verb})
    assert len(cloud.history(server_id)) == before


def test_who_may_only_look_has_no_buttons_and_cannot_do_without(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    ron = staff("ron", "view_instancemapping")
    page = text(ron, url(server_id))
    assert 'name="verb"' not in page
    assert "Actions" not in page
    assert ron.post(url(server_id), {"verb": "os-stop"}).status_code == 403
    assert states(cloud, server_id) == ("active", None)
    ann = staff("ann", "view_instancemapping", "change_instancemapping")
    assert "os-stop" in offered(text(ann, url(server_id)))
    ann.post(url(server_id), {"verb": "os-stop"})
    assert states(cloud, server_id) == ("active", "powering-off")


def test_a_server_of_a_cell_that_is_down_can_be_deleted_and_nothing_else(admin, cloud, browser):
    server_id = two_hosts.booted(admin, cloud)
    circuit_breaker.record_failure(cloud.cells["cell1"].id, "cut off")
    page = text(browser, url(server_id))
    assert "does not answer (cut off)" in page
    assert offered(page) == {"delete"}
    why = reasons(page)
    assert {key.removeprefix("os-") for key in RUNS | ALWAYS} <= set(why)
    assert why["stop"].startswith("cell cell1 does not answer for ")
    assert why["stop"].endswith("(cut off); only a delete is accepted; it runs when the cell is up again")
    said = browser.post(url(server_id), {"verb": "os-stop"}, follow=True).content.decode()
    assert "stop was refused: Cell cell1 does not answer now" in said
    ron = staff("ron", "view_instancemapping")
    assert "Actions" not in text(ron, url(server_id))
    assert ron.post(url(server_id), {"verb": "delete"}).status_code == 403


def test_a_delete_that_is_asked_for_while_its_cell_is_down_is_done_when_it_is_back(admin, cloud, browser):
    server_id = two_hosts.booted(admin, cloud)
    cell = cloud.cells["cell1"]
    circuit_breaker.record_failure(cell.id, "cut off")
    said = browser.post(url(server_id), {"verb": "delete"}, follow=True).content.decode()
    assert "delete was accepted; it runs when the cell is up again." in said
    assert not offered(said)
    assert reasons(said)["delete"] == "a delete is already requested; it runs when the cell is up again"
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["delete"]
    circuit_breaker.record_recovery(cell.id)
    assert deferred_deletes.carry_out() == 1
    cloud.work()
    assert cloud.history(server_id)[-1].user_id == str(LogEntry.objects.get().user_id)
    assert states(cloud, server_id) == ("soft-delete", None)


def test_a_delete_that_was_offered_while_its_cell_was_down_is_done_at_once_when_it_is_back(admin, cloud, browser):
    server_id = two_hosts.booted(admin, cloud)
    said = browser.post(url(server_id), {"verb": "delete"}, follow=True).content.decode()
    assert "delete was accepted." in said
    cloud.work()
    assert states(cloud, server_id) == ("soft-delete", None)


def test_a_name_that_is_a_script_is_only_a_name(api, cloud, browser):
    server_id = cloud.boot(api, "<script>alert(1)</script>")
    assert "<script>alert(1)" not in text(browser, url(server_id))
    assert cloud.row(server_id).project_id == PROJECT
