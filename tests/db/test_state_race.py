"""A server's states under parallel callers: the database picks one."""

from __future__ import annotations

import pytest
from django.db import transaction

from cells.context import target_cell
from cloud.errors import Conflict
from compute import state
from compute.actions.delete import Delete
from compute.actions.pause import Pause
from compute.errors import StateConflict
from compute.models import Instance, InstanceAction
from compute.operations.action import ActionRequest
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState
from tests.conftest import client
from tests.flow import stories
from tests.flow.stories import at_once

PAUSE = Move(frozenset({VmState.ACTIVE}), TaskState.PAUSING, VmState.PAUSED)


@pytest.fixture
def server(api, cloud):
    """An active server, with its cell."""
    server_id = cloud.boot(api)
    return server_id, cloud.cell_of(server_id)


def test_of_forty_callers_that_begin_at_once_one_wins(server):
    server_id, cell = server

    def begin(_):
        with target_cell(cell):
            instance = Instance.objects.get(uuid=server_id)
            try:
                state.begin(instance, PAUSE)
            except StateConflict as conflict:
                return conflict.task_state
            return "won"

    results = at_once(40, begin)
    assert (results.count("won"), results.count("pausing")) == (1, 39)
    with target_cell(cell):
        assert Instance.objects.get(uuid=server_id).task_state == "pausing"


def test_of_ten_requests_through_the_api_one_is_accepted_and_the_rest_are_conflicts(server, cloud):
    server_id, cell = server
    answers = at_once(10, lambda _: stories.act(client("member"), server_id, {"pause": None}))
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 9
    with target_cell(cell):
        assert InstanceAction.objects.filter(action="pause").count() == 1
    cloud.work()
    stories.settled(cloud)


def test_of_ten_deletes_at_once_one_is_done_and_all_succeed(server, cloud):
    server_id, cell = server
    answers = at_once(10, lambda _: client("member").delete(f"/servers/{server_id}"))
    assert {answer.status_code for answer in answers} == {204}
    with target_cell(cell):
        assert InstanceAction.objects.filter(action="delete").count() == 1
    cloud.work()
    assert set(cloud.used().values()) == {(0, 0)}
    stories.settled(cloud)


def test_a_delete_and_a_task_at_once_end_deleted(server, cloud):
    server_id, _ = server

    def work(number):
        if number % 2:
            return client("member").delete(f"/servers/{server_id}").status_code
        return stories.act(client("member"), server_id, {"os-stop": None}).status_code

    assert set(at_once(8, work)) <= {202, 204, 409}
    cloud.work()
    assert cloud.row(server_id).deleted
    stories.settled(cloud)


def test_a_look_that_is_older_than_a_task_records_nothing(server, cloud, api):
    server_id, cell = server
    with target_cell(cell):
        seen = Instance.objects.get(uuid=server_id)
    stories.lead(api, cloud, server_id, ("stop",))
    with target_cell(cell), pytest.raises(StateConflict):
        state.observe(seen, state.PowerState.RUNNING, VmState.ACTIVE)
    assert stories.states(cloud, server_id) == ("stopped", None)


def test_an_action_that_lost_the_race_says_in_which_state_the_server_is(server, api):
    server_id, cell = server
    with target_cell(cell):
        instance = Instance.objects.get(uuid=server_id)
        Delete().submit(instance, ActionRequest(api.caller, "req-1"))
        stale = Instance.objects.get(uuid=server_id)
        with pytest.raises(Conflict, match=r"Cannot 'pause' instance .* while it is in task_state deleting"):
            Pause().submit(stale, ActionRequest(api.caller, "req-2"))


def test_of_forty_looks_at_one_change_one_is_put_on_record(server):
    server_id, cell = server
    with target_cell(cell):
        seen = [Instance.objects.get(uuid=server_id) for _ in range(40)]
    before = seen[0].generation  # the winner's own copy, which may be this one, counts it

    def look(number):
        with target_cell(cell), transaction.atomic(using=cell.alias):
            return len(state.observe_all([(seen[number], {"power_state": PowerState.SHUTDOWN})]))

    assert sorted(at_once(40, look)) == [0] * 39 + [1]
    with target_cell(cell):
        assert Instance.objects.get(uuid=server_id).generation == before + 1


def test_whoever_is_first_of_users_and_those_who_put_back_has_the_server(server):
    server_id, cell = server
    with target_cell(cell):
        seen = [Instance.objects.get(uuid=server_id) for _ in range(20)]
    back = Move(state.LIVING, TaskState.POWERING_ON)

    def act(number):
        if number % 2:
            return stories.act(client("member"), server_id, {"pause": None}).status_code == 202
        with target_cell(cell), transaction.atomic(using=cell.alias):
            return bool(state.begin_all([(seen[number // 2], back, PowerState.SHUTDOWN)]))

    assert sorted(at_once(20, act)) == [False] * 19 + [True]
    with target_cell(cell):
        assert Instance.objects.get(uuid=server_id).task_state in ("pausing", "powering-on")
