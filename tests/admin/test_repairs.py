"""The page of a server has buttons for a step that does not go on: try it now, give it up."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from compute.virt.base import HypervisorUnavailable
from tests.admin.conftest import staff
from tests.admin.test_allowed_actions import url
from tests.admin.test_pages import text
from tests.flow import stories, two_hosts
from tests.flow.stories import act
from tests.flow.two_hosts import LIVE

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
TRY, GIVE_UP = 'value="retry-step"', 'value="give-up-step"'


@pytest.fixture
def behind(admin, cloud):
    """A server that has migrated; its source's hypervisor is away, so what is left there cannot be cleaned up."""
    server_id = two_hosts.booted(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("cleanup_source", times=-1, error=HypervisorUnavailable)
    act(admin, server_id, LIVE)
    cloud.work()
    return server_id


def press(browser, server_id, verb, **more):
    """A button; what the page says then."""
    answer = browser.post(url(server_id), {"verb": verb, **more}, follow=True)
    return answer.content.decode()


def test_a_step_that_waits_for_its_hypervisor_has_buttons_and_a_warning(browser, cloud, behind):
    page = text(browser, url(behind))
    assert (page.count(TRY), page.count(GIVE_UP)) == (1, 1)
    assert "waits for the hypervisor of host host1" in page
    assert "Only this step can clean up on host host1" in page


def test_a_step_is_tried_again_at_the_press_of_a_button(browser, cloud, behind):
    step = two_hosts.waiting(cloud)
    cloud.hosts["host1"].driver.faults.clear()
    assert "Step cleanup_source is retried now." in press(browser, behind, "retry-step", step=step.pk)
    cloud.work()
    assert cloud.queued() == []
    assert LogEntry.objects.get().change_message == "retried step cleanup_source"
    page = text(browser, url(behind))
    assert (TRY in page, GIVE_UP in page) == (False, False)
    assert "has ended" in press(browser, behind, "retry-step", step=step.pk)


def test_a_step_is_given_up_for_a_reason(browser, admin, cloud, behind):
    step = two_hosts.waiting(cloud)
    assert "give a reason" in press(browser, behind, "give-up-step", step=step.pk, reason=" ")
    assert two_hosts.waiting(cloud).pk == step.pk

    said = press(browser, behind, "give-up-step", step=step.pk, reason="its disk is gone")

    assert "live-migration ends with an error" in said
    assert cloud.queued() == []
    assert stories.last_action(admin, behind)["message"] == "Error"
    assert cloud.history(behind)[-1].outcome == "given up by admin:root: its disk is gone"
    assert LogEntry.objects.get().change_message == "gave up step cleanup_source: its disk is gone"
    assert stories.states(cloud, behind) == ("active", None)


@pytest.mark.parametrize("step", ["", "x", "999999", "9" * 40])
def test_there_is_no_such_step(browser, cloud, behind, step):
    assert "No such step." in press(browser, behind, "retry-step", step=step)


def test_a_step_of_another_server_is_not_reached_from_this_one(browser, admin, cloud, behind):
    other, step = two_hosts.booted(admin, cloud, "host3"), two_hosts.waiting(cloud)
    said = press(browser, other, "give-up-step", step=step.pk, reason="r")
    assert "This server has no such step." in said
    assert two_hosts.waiting(cloud).pk == step.pk


def test_who_may_only_look_has_no_buttons_and_is_refused(cells, cloud, behind):
    looker = staff("lou", "view_instancemapping")
    page = text(looker, url(behind))
    assert "cleanup_source" in page
    assert (TRY in page, GIVE_UP in page) == (False, False)
    step = two_hosts.waiting(cloud)
    refused = looker.post(url(behind), {"verb": "give-up-step", "step": step.pk, "reason": "r"})
    assert (refused.status_code, two_hosts.waiting(cloud).pk) == (403, step.pk)
