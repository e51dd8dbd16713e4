"""A host killed at every moment of a power-update: it is led out, once, and the record is true."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from cloud import failpoints
from compute.actions.power_update import OFF, ON, PowerUpdateParams
from compute.models import InstanceAction
from compute.operations import journal
from compute.operations.action import MAX_TRIES
from tests.byhand import Cloud
from tests.flow import stories
from tests.flow.stories import Killed, act, states
from tests.flow.test_power_update import hear, outcome, say, stands, switch, waiting

POINTS = ("step.claimed", "step.worked", "step.committed")
MOMENTS = (*POINTS, "begun", "asked")


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    """Its machines can be switched, and their hosts are told."""
    for host in cloud.hosts.values():
        host.driver.faults.accept()
    return cloud


def dies_once(cloud: Cloud, server_id: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Its host is killed at that moment; the list says whether it was."""
    died: list[str] = []

    def die() -> None:
        if not died:
            died.append(moment)
            raise Killed

    def reached(point: str, step: str = "", server: str = "") -> None:
        if point == moment and step in ("power_update", ""):
            die()

    monkeypatch.setattr(failpoints, "reached", reached)
    driver = cloud.host_of(server_id).driver
    if moment == "begun":  # the server is taken, and the driver was not asked
        driver.faults.fail("power_update_event", error=Killed)
        died.append(moment)
    if moment == "asked":  # and its answer is not on record
        change = journal.change_params

        def changed(action: InstanceAction, kind: type[PowerUpdateParams], new: Any) -> None:
            known = kind.load(action.params)
            if new(known).does != known.does:
                die()
            change(action, kind, new)

        monkeypatch.setattr(journal, "change_params", changed)
    return died


@pytest.mark.parametrize("said", [OFF, ON])
@pytest.mark.parametrize("moment", MOMENTS)
def test_it_ends_right(moment, said, api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    if said == ON:
        stories.lead(api, cloud, server_id, ("stop",))
    action = switch(cloud, server_id, said)
    died = dies_once(cloud, server_id, moment, monkeypatch)
    with suppress(Killed):
        cloud.work()
    assert died == [moment]
    cloud.host_of(server_id).restart()
    cloud.work()
    assert outcome(action)[0] is None
    stands(cloud, server_id, "active" if said == ON else "stopped")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_delete_while_it_is_dead_wins(moment, api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    action = switch(cloud, server_id, OFF)
    dies_once(cloud, server_id, moment, monkeypatch)
    with suppress(Killed):
        cloud.work()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.host_of(server_id).restart()
    cloud.work()
    assert cloud.row(server_id).deleted
    assert outcome(action)[0] is None
    stories.settled(cloud)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_newer_event_while_it_is_dead_counts(moment, api, cloud, monkeypatch):
    server_id = cloud.boot(api)
    older = switch(cloud, server_id, OFF)
    dies_once(cloud, server_id, moment, monkeypatch)
    with suppress(Killed):
        cloud.work()
    newer = switch(cloud, server_id, ON)
    cloud.host_of(server_id).restart()
    cloud.work()
    assert (outcome(older)[0], outcome(newer)[0]) == (None, None)
    stands(cloud, server_id, "active")


def test_a_host_killed_while_events_wait_carries_out_the_newest_in_its_next_life(api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    older, newer = say(cloud, server_id, ON), switch(cloud, server_id, OFF)
    hear(cloud, server_id)
    assert len(waiting(cloud, server_id)) == 1
    cloud.host_of(server_id).restart()
    cloud.work()
    assert outcome(older)[1].startswith("superseded")
    assert outcome(newer)[0] is None


def test_one_that_kills_its_host_every_time_is_given_up_and_the_server_is_free(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    action = say(cloud, server_id, OFF)
    host.driver.faults.fail("power_update_event", times=MAX_TRIES, error=Killed)
    for _ in range(MAX_TRIES):
        with suppress(Killed):
            cloud.work()
        host.restart()
    cloud.work()
    assert outcome(action)[0] == "Error"
    assert states(cloud, server_id) == ("active", None)
    stories.settled(cloud)
