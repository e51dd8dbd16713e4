"""A host goes down while users stop, start, delete and reboot what is on it."""

from __future__ import annotations

import pytest

from cells.context import target_cell
from compute.hosts import drain, guest_shutdown
from compute.models import Service
from compute.virt.base import PowerState
from tests.flow.going_down import ask, boot, drained, due, flagged, is_off, one_host, read, step_of
from tests.flow.stories import act, lead, settled, states


@pytest.fixture
def host(cloud):
    return one_host(cloud)


@pytest.mark.parametrize("closed", [False, True], ids=["open", "drained"])
def test_stop_delete_and_the_hosts_shutdown_have_one_clock_and_one_outcome(closed, api, admin, cloud, host):
    server_id = cloud.boot(api, metadata={"termination_grace_period_seconds": "2"})
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        assert api.delete(f"/servers/{server_id}").status_code == 204
        cloud.work()
        if closed:
            drained(cloud)
        ask(cloud)
        cloud.work()
        assert len(host.waiting()) >= 2
        cloud.work_until(lambda: not host.waiting() and not cloud.queued())
    ended = [action.outcome for action in cloud.history(server_id)[1:]]
    assert len(ended) == 3
    assert all("forced off after 2 s" in outcome for outcome in ended), ended
    assert cloud.row(server_id).deleted
    assert not flagged(cloud)
    settled(cloud)


def test_a_stop_that_waits_is_joined_and_stays_the_users(api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.faults.shutdown(delay=2)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        [stop] = host.waiting()
        ask(cloud)
        cloud.work()
        timers = [step.timer for step in host.waiting()]
        assert len(timers) == 2
        assert {(timer["begun"], timer["deadline"]) for timer in timers} == {
            (stop.timer["begun"], stop.timer["deadline"])
        }
        cloud.work_until(lambda: not host.waiting())
    stop_words, down_words = [action.outcome for action in cloud.history(server_id)[1:]]
    assert stop_words == down_words
    assert down_words.startswith("guest shut down in ")
    assert states(cloud, server_id) == ("stopped", None)
    assert not flagged(cloud), "its user wants it off"
    settled(cloud)


@pytest.mark.parametrize("name", ["reboot", "rescue"])
def test_one_that_goes_off_only_to_come_on_again_goes_off_after_that(name, api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.faults.shutdown(delay=2)
    body = {"reboot": {"type": "SOFT"}} if name == "reboot" else {"rescue": None}
    with host.with_watcher():
        assert act(api, server_id, body).status_code in (200, 202)
        cloud.work()
        assert len(host.waiting()) == 1
        ask(cloud)
        cloud.work()
        assert step_of(cloud, server_id).details.startswith(f"waits for {name[:5]}")
        cloud.work_until(lambda: states(cloud, server_id)[1] is None)
        assert host.driver.power_state(server_id) is PowerState.RUNNING
        due(host)
        cloud.work_until(lambda: not host.waiting())
    assert is_off(cloud, server_id)
    assert states(cloud, server_id) == ("stopped" if name == "reboot" else "rescued", None)
    assert flagged(cloud) == {server_id}
    settled(cloud)


def test_nobody_starts_a_guest_that_goes_off_with_its_host(api, cloud, host):
    server_id = cloud.boot(api)
    host.driver.faults.shutdown(delay=2)
    with host.with_watcher():
        ask(cloud)
        cloud.work()
        for body in ({"os-start": None}, {"os-stop": None}, {"reboot": {"type": "SOFT"}}):
            assert act(api, server_id, body).status_code == 409
        cloud.work_until(lambda: not host.waiting())
    assert states(cloud, server_id) == ("stopped", None)


def test_a_server_deleted_while_it_goes_off_is_deleted(api, cloud, host):
    server_id, other = boot(api, cloud, 2)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        ask(cloud, at_once=1)
        cloud.work()
        assert api.delete(f"/servers/{server_id}").status_code == 204
        cloud.work_until(lambda: cloud.row(server_id).deleted and read(cloud)[other].state == "shutting down")
        assert api.delete(f"/servers/{other}").status_code == 204
        cloud.work_until(lambda: cloud.row(other).deleted and not host.waiting())
    assert not flagged(cloud)
    settled(cloud)


def test_one_deleted_before_its_turn_needs_none(api, cloud, host):
    server_id = cloud.boot(api)
    ask(cloud)
    down = step_of(cloud, server_id)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    for _, step in cloud.queued():
        if step.pk != down.pk:
            host.run(step.pk)
    assert cloud.row(server_id).deleted
    cloud.work()
    assert step_of(cloud, server_id).details == "deleted meanwhile"
    settled(cloud)


def test_what_goes_on_with_a_server_ends_first(api, cloud, host):
    server_id = cloud.boot(api)
    act(api, server_id, {"pause": None})
    ask(cloud)
    down = step_of(cloud, server_id)
    host.run(down.pk)
    assert step_of(cloud, server_id).details == "waits for pausing to end"
    assert host.driver.power_state(server_id) is PowerState.RUNNING
    cloud.work()
    assert states(cloud, server_id) == ("paused", None)
    due(host)
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    settled(cloud)


def test_a_request_that_a_drained_host_does_not_begin_is_not_waited_for(api, cloud, host):
    server_id = cloud.boot(api)
    drained(cloud)
    act(api, server_id, {"os-stop": None})
    ask(cloud)
    host.run(step_of(cloud, server_id).pk)
    assert (states(cloud, server_id), is_off(cloud, server_id)) == (("active", "powering-off"), True)
    drained(cloud, wanted=False)
    cloud.work()
    assert states(cloud, server_id) == ("stopped", None)
    assert not flagged(cloud)
    settled(cloud)


def test_whatever_is_asked_of_it_afterwards_it_does_not_come_back_by_itself(api, cloud, host):
    started, snapped, deleted = boot(api, cloud, 3)
    ask(cloud)
    cloud.work()
    assert flagged(cloud) == {started, snapped, deleted}
    lead(api, cloud, started, ("start",))
    act(api, snapped, {"createImage": {"name": "x"}})
    api.delete(f"/servers/{deleted}")
    cloud.work()
    assert flagged(cloud) == set()
    settled(cloud)


def test_an_undrain_leaves_on_who_has_not_begun(api, cloud, host):
    first, second = boot(api, cloud, 2)
    host.driver.faults.shutdown(delay=0.3)
    with host.with_watcher(), target_cell(host.cell):
        service = Service.objects.get(host="host1")
        drain.request(service, by="ann")
        ask(cloud, at_once=1)
        cloud.work()
        assert drain.needs("host1") == 2
        drain.withdraw(service)
        assert not guest_shutdown.going_on("host1")
        assert guest_shutdown.has_open("host1")
        cloud.work_until(lambda: not host.waiting())
    assert (states(cloud, first), states(cloud, second)) == (("stopped", None), ("active", None))
    assert cloud.history(second)[-1].outcome == "the host takes work again"
    assert flagged(cloud) == {first}
    settled(cloud)
