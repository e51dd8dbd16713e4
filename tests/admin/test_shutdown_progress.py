"""A server whose guest is on its way off: its page counts down, says who asked, and can end the wait."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Service, Step
from compute.virt.shutdown_timer import ShutdownTimer
from tests.admin.conftest import PROGRESS, action, draining, host, staff, url
from tests.admin.test_allowed_actions import offered
from tests.admin.test_allowed_actions import url as server_url
from tests.admin.test_pages import text
from tests.cells import rows
from tests.flow import stories
from tests.flow.stories import act

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def waiting(api, cloud, settings):
    """A server whose stop waits for a guest that never obeys, with its host's shutdown watcher."""
    settings.SHUTDOWN_TIMEOUT = 600
    server_id = cloud.boot(api)
    at = cloud.host_of(server_id)
    at.driver.faults.shutdown(ignore=True)
    with at.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work_until(lambda: [step for step in at.waiting() if step.timer and step.timer["signals"]])
        yield server_id
        at.driver.begin_shutdown(server_id, 0, 10)
        cloud.work_until(lambda: not at.waiting())
    stories.settled(cloud)


def is_over(cloud, server_id):
    """Whether nothing goes on with a server any more."""
    return all(action.finished_at for action in cloud.history(server_id))


def plain(page):
    """Without tags, one space between words."""
    return " ".join(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def words(page):
    """The buttons of the countdown."""
    return re.findall(r"<summary[^>]*>([^<]+) …</summary>", page)


def test_the_page_counts_down_and_says_who_asked_what_for(api, browser, cloud, waiting):
    page = text(browser, server_url(waiting))
    [(left, length)] = re.findall(r'role="timer"[^>]* data-left="([0-9.]+)" data-length="([0-9.]+)"', page)
    assert 500 < float(left) <= float(length) == 600
    said = plain(page)
    assert "of 10 min 0 s left" in said
    assert re.search("At the deadline at [0-9:]{8} UTC, unless it shuts down before: its power is cut", said)
    assert "Signals 1 by ACPI, last " in said
    asked = cloud.history(waiting)[-1]
    assert f"stop, {0} s ago, by user {asked.user_id} ({asked.request_id})" in re.sub(r"stop, \d+ s", "stop, 0 s", said)
    assert re.search(r'<progress[^>]*max="100" value="\d+"[^>]*aria-label="[^"]+"', page)
    assert "◷ waiting" in said
    assert 'hx-get="' in page  # it looks again, as every busy server's page does


def test_the_plug_is_pulled_when_somebody_presses_the_button(api, browser, cloud, waiting):
    assert words(text(browser, server_url(waiting))) == ["Cut power now", "Delete now"]
    assert "os-stop" in offered(text(browser, server_url(waiting)))
    answer = browser.post(server_url(waiting), {"verb": "os-stop", "shutdown_type": "HARD"}, follow=True)
    assert "stop was accepted." in answer.content.decode()
    cloud.work_until(lambda: is_over(cloud, waiting))
    assert stories.states(cloud, waiting) == ("stopped", None)
    page = text(browser, server_url(waiting))
    assert 'data-left="' not in page
    assert "<div data-countdown>" not in page
    assert "cut short by a request" in plain(page)  # how it ended, among its actions


def test_a_server_is_deleted_in_the_middle_of_it(api, browser, cloud, waiting):
    browser.post(server_url(waiting), {"verb": "forceDelete"})
    cloud.work_until(lambda: is_over(cloud, waiting))
    assert cloud.row(waiting).deleted
    assert 'data-left="' not in text(browser, server_url(waiting))
    stop = next(one for one in cloud.history(waiting) if one.action == "stop")
    assert stop.outcome.startswith("preempted: ")
    assert stop.outcome.replace('"', "&quot;") in text(browser, server_url(waiting))


def test_who_may_only_look_sees_it_without_buttons(api, cloud, waiting):
    page = text(staff("ron", "view_instancemapping"), server_url(waiting))
    assert 'data-left="' in page
    assert words(page) == []


def test_a_reboot_says_what_becomes_of_it_and_can_be_ended(api, browser, cloud, settings):
    settings.SHUTDOWN_TIMEOUT = 600
    server_id = cloud.boot(api)
    at = cloud.host_of(server_id)
    at.driver.faults.shutdown(ignore=True)
    with at.with_watcher():
        act(api, server_id, {"reboot": {"type": "SOFT"}})
        cloud.work()
        page = text(browser, server_url(server_id))
        assert "it is reset (hard reboot)" in plain(page)
        assert words(page) == ["Reset now", "Delete now"]
        browser.post(server_url(server_id), {"verb": "reboot", "type": "HARD"})
        cloud.work_until(lambda: is_over(cloud, server_id))
    assert stories.states(cloud, server_id) == ("active", None)
    assert 'data-left="' not in text(browser, server_url(server_id))


def test_a_countdown_that_nobody_ends_is_said(api, browser, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"os-stop": None})
    with target_cell(cloud.cell_of(server_id)):
        now = time.time()
        late = timezone.now() - timedelta(seconds=90)
        timer = ShutdownTimer(now - 150, now - 90, 10, signals=6, signalled=now - 100, by="agent, acpi").facts
        Step.objects.filter(server_id=server_id, state="queued").update(state="waiting", timer=timer, deadline=late)
    said = plain(text(browser, server_url(server_id)))
    assert re.search(r"The deadline passed 1 min [345]\d s ago", said)
    assert re.search("At the deadline overdue since [0-9:]{8} UTC: as soon as its host can, its power is cut", said)
    assert "Signals 6 by guest agent, ACPI" in said
    assert re.search(r"overdue guest shutdown, by 1 min [345]\d s", plain(text(browser, PROGRESS)))


def test_a_server_that_is_idle_has_no_countdown(api, browser, cloud):
    assert "<div data-countdown>" not in text(browser, server_url(cloud.boot(api)))


def test_a_stop_can_be_hard_from_the_beginning(admin, api, browser, cloud):
    server_id = cloud.boot(api)
    page = text(browser, server_url(server_id))
    assert "Shutdown type" in page
    refused = browser.post(server_url(server_id), {"verb": "os-stop", "shutdown_timeout": "-1"}, follow=True)
    assert "shutdown_timeout: Ensure this value is greater than or equal to 0." in refused.content.decode()
    browser.post(server_url(server_id), {"verb": "os-stop", "shutdown_type": "HARD", "shutdown_timeout": ""})
    cloud.work()
    event = stories.last_action(admin, server_id)["events"][0]
    assert event["details"].startswith("forced off at once")


def test_waiting_has_a_sign_and_words_of_its_own(operator, cells):
    cell, now = cells["cell1"], timezone.now()
    host(cell, "h1")
    host(cell, "h2", last_seen_up=now - timedelta(hours=2))
    for name, at in (("for-guest", "h1"), ("for-host", "h2")):
        timer = ShutdownTimer.start(time.time(), 60, 10).facts
        deadline = now + timedelta(seconds=60)
        action(cell, str(uuid4()), host=at, name=name, state="waiting", timer=timer, deadline=deadline, queue="ops")
    action(cell, str(uuid4()), host="h1", name="for-turn", state="waiting", details="its turn to go down", queue="ops")
    page = text(operator, PROGRESS).split("<tr")
    lines = {line.partition("reboot: ")[2].split("<")[0].strip(): line for line in page}
    assert "◷ waiting" in plain(lines["for-guest"])
    assert re.search(r"guest shutdown, at most (1 min 0|5\d) s more", plain(lines["for-guest"]))
    assert "▼ down</span> h2" in lines["for-host"]
    assert "its turn to go down" in plain(lines["for-turn"])


def test_a_host_that_drains_waits_for_guests_and_says_for_how_long(operator, cells):
    cell = cells["cell1"]
    service = draining(cell, "h1")
    instance = rows.server(cell, host="h1")
    timer = ShutdownTimer.start(time.time(), 60, 10)
    step = action(cell, instance.uuid, host="h1", name="power_off", state="waiting", queue="ops", details=timer.words(),
                  timer=timer.facts, deadline=timezone.now() + timedelta(seconds=60))  # fmt: skip
    panel = plain(text(operator, url(cell, service)))
    assert "◷ waiting" in panel
    assert "forced off at 20" in panel
    assert re.search(r"(59|58|1 min 0) ?s", panel)
    with target_cell(cell):
        assert Service.objects.filter(host=step.host).exists()
