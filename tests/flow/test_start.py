"""Starting a server."""

from __future__ import annotations

from tests.flow import stories

STORY = stories.STORIES["start"]


def test_start_reaches_the_guest_and_ends_active(api, cloud):
    stories.runs_through(STORY, api, cloud)


def test_start_is_refused_to_those_who_may_not_and_to_a_locked_server(api, admin, stranger, reader, cloud):
    stories.is_refused(STORY, api, admin, stranger, reader, cloud)


def test_start_in_the_wrong_state_is_a_conflict(api, cloud):
    stories.is_refused_in_the_wrong_state(STORY, api, cloud)


def test_start_that_fails_leaves_the_server_usable(api, admin, cloud):
    stories.failure_leads_out(STORY, api, admin, cloud)


def test_start_waits_for_a_hypervisor_that_comes_back(api, cloud):
    stories.hypervisor_comes_back(STORY, api, cloud)
