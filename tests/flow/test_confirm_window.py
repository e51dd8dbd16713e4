"""A resize nobody said a word about confirms itself, where the operator wants that."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from cells.context import target_cell
from compute.models import InstanceAction, Service
from compute.periodic import confirm_resizes
from compute.virt.base import VirtError
from tasks.periodic import tasks_of
from tests.flow import stories
from tests.flow.stories import act
from tests.flow.test_confirm_resize import CONFIRM, resized  # noqa: F401  a fixture
from tests.flow.test_resize import is_as_before, is_large, large, other  # noqa: F401  large is a fixture

REVERT = {"revertResize": None}
WINDOW = 3600


@pytest.fixture(autouse=True)
def window(settings):
    settings.RESIZE_CONFIRM_WINDOW = WINDOW


def look(cloud):
    """A conductor of cell1 looks; how many it confirmed."""
    with target_cell(cloud.cells["cell1"]):
        return confirm_resizes.confirm()


def pass_by(cloud, seconds=WINDOW + 1):
    """So much time goes by."""
    with target_cell(cloud.cells["cell1"]):
        InstanceAction.objects.update(finished_at=F("finished_at") - timedelta(seconds=seconds))


def test_a_conductor_looks_only_where_the_operator_wants_it(settings):
    assert "confirm_resizes" in {one.name for one in tasks_of("conductor")}
    settings.RESIZE_CONFIRM_WINDOW = 0
    assert "confirm_resizes" not in {one.name for one in tasks_of("conductor")}


def test_it_is_confirmed_when_its_time_is_over_and_not_before(api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud, WINDOW - 60)
    assert look(cloud) == 0
    pass_by(cloud, 61)
    assert (look(cloud), look(cloud)) == (1, 0)
    cloud.work()
    assert look(cloud) == 0
    assert stories.states(cloud, server_id) == ("active", None)
    is_large(cloud, server_id, other(source))


def test_its_history_says_that_nobody_asked_for_it(api, cloud, resized):  # noqa: F811
    server_id, _ = resized
    pass_by(cloud)
    assert look(cloud) == 1
    done = stories.last_action(api, server_id)
    known = {action.request_id for action in cloud.history(server_id)[:-1]}
    assert (done["action"], done["user_id"]) == ("confirmResize", "")
    assert done["request_id"].startswith("req-")
    assert done["request_id"] not in known


def test_conductors_that_look_at_once_confirm_it_once(api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud)
    assert sum(stories.at_once(4, lambda _: look(cloud))) == 1
    cloud.work()
    assert [action.key for action in cloud.history(server_id)].count("ConfirmResize") == 1
    is_large(cloud, server_id, other(source))


@pytest.mark.parametrize("first", ["the window", "the user"])
def test_a_revert_at_that_moment_wins_or_loses(first, api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud)
    if first == "the user":
        assert act(api, server_id, REVERT).status_code == 202
        assert look(cloud) == 0
        cloud.work()
        is_as_before(cloud, server_id, source)
    else:
        assert look(cloud) == 1
        assert act(api, server_id, REVERT).status_code == 409
        cloud.work()
        is_large(cloud, server_id, other(source))


def test_a_revert_and_the_window_racing_have_one_winner(api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud)
    calls = [lambda: act(api, server_id, REVERT).status_code, lambda: look(cloud)]
    assert set(stories.at_once(2, lambda number: calls[number]())) in ({202, 0}, {409, 1})
    cloud.work()
    back = cloud.row(server_id).host == source
    (is_as_before if back else is_large)(cloud, server_id, source if back else other(source))


def test_who_could_not_go_back_may_try_again(api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud)
    cloud.hosts[source].driver.faults.fail("revert_migration", error=VirtError)
    act(api, server_id, REVERT)
    cloud.work()
    assert stories.states(cloud, server_id) == ("resized", None)
    assert look(cloud) == 0
    act(api, server_id, REVERT)
    cloud.work()
    is_as_before(cloud, server_id, source)


@pytest.mark.parametrize("why", ["down", "draining"])
def test_a_source_that_cannot_do_it_now_leaves_the_server_to_its_user(why, api, cloud, resized):  # noqa: F811
    server_id, source = resized
    pass_by(cloud)
    with target_cell(cloud.cells["cell1"]):
        host = Service.objects.filter(host=source)
        long_ago = timezone.now() - timedelta(days=1)
        host.update(**({"last_seen_up": long_ago} if why == "down" else {"drain_wanted": True}))
        assert look(cloud) == 0
        assert stories.states(cloud, server_id) == ("resized", None)
        host.update(last_seen_up=timezone.now(), drain_wanted=False)
    assert look(cloud) == 1


def test_a_confirmed_server_is_left_alone(api, cloud, resized):  # noqa: F811
    server_id, _ = resized
    act(api, server_id, CONFIRM)
    cloud.work()
    pass_by(cloud)
    assert look(cloud) == 0
    assert stories.states(cloud, server_id) == ("active", None)


def test_a_deleted_server_is_left_alone(api, cloud, resized):  # noqa: F811
    server_id, _ = resized
    api.delete(f"/servers/{server_id}")
    cloud.work()
    pass_by(cloud)
    assert look(cloud) == 0
