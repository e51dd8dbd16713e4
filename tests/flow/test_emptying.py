"""Servers leave a host before it drains, and come back; any conductor sees to it, and any may die meanwhile."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from cells.context import target_cell
from compute import departures, draining, emptying, forecast, host_guests
from compute.departures import State
from compute.models import ComputeNode, Departure, Flavor, Instance, InstanceAction, Service
from compute.virt.base import InsufficientResources
from tasks import goodbye, worker
from tests.flow import stories, two_hosts
from tests.flow.stories import act
from tests.flow.two_hosts import LIVE, claimed, homes

KEY = "stillwater:drain"
MOVES = ("MigrateLive", "Migrate", "ConfirmResize")


class Ward:
    """host1 with servers, host3 and host4 beside it in cell1, and whoever watches it being emptied."""

    def __init__(self, admin, cloud):
        self.admin, self.cloud, self.most = admin, cloud, 0
        for name in ("host3", "host4"):
            cloud.add_host(name, "cell1")

    def boot(self, count=1, host="host1"):
        return [self.cloud.boot(self.admin, f"s{n}", host=host) for n in range(count)]

    def do(self, server_id, *bodies):
        for body in bodies:
            assert act(self.admin, server_id, body).status_code in (202, 204)
            self.cloud.work()

    def ask(self, wanted, host="host1"):
        (found,) = self.admin.get(f"/os-services?host={host}").json()["services"]
        answer = self.admin.send("put", f"/os-services/{found['id']}", {KEY: wanted})
        assert answer.status_code == 200, answer.content
        return answer.json()["service"].get(KEY)

    def round(self):
        """A conductor looks; how many are under way then."""
        with target_cell(self.cloud.cells["cell1"]):
            emptying.go_round()
            open_moves = InstanceAction.objects.filter(key__in=MOVES, finished_at__isnull=True).count()
            self.most = max(self.most, open_moves)
        return open_moves

    def work(self, rounds=30):
        """Until nothing is under way."""
        for _ in range(rounds):
            if not self.round():
                self.cloud.work()
                if not self.round():
                    return
            self.cloud.work()
        raise AssertionError(self.moves())

    def again(self):
        """The pauses are over."""
        with target_cell(self.cloud.cells["cell1"]):
            Departure.objects.update(not_before=None)
        self.work()

    def moves(self, host="host1"):
        with target_cell(self.cloud.cells["cell1"]):
            return departures.read(host)

    def blockers(self, host="host1"):
        return {line.server_id: line.why for line in self.moves(host).blocked}

    def service(self, host="host1"):
        with target_cell(self.cloud.cells["cell1"]):
            return Service.objects.get(host=host)

    def state(self, host="host1"):
        return self.service(host).drain_state

    def host_of(self, server_id):
        return self.cloud.row(server_id).host

    def is_sound(self, *servers):
        """Each in one place, as its record says, and counted there."""
        stories.settled(self.cloud)
        for server_id in servers:
            stories.true_to_the_guest(self.cloud, server_id)
            assert homes(self.cloud, server_id) == [self.host_of(server_id)]
            assert claimed(self.cloud, server_id) == {self.host_of(server_id)}


@pytest.fixture
def ward(admin, cloud):
    return Ward(admin, cloud)


def test_servers_leave_each_in_its_way_and_then_the_host_drains(ward):
    _, paused, stopped = servers = ward.boot(3)
    ward.do(paused, {"pause": None})
    ward.do(stopped, {"os-stop": None})

    shown = ward.ask({"migrate": {"parallel": 2}, "reason": "new kernel"})
    assert (shown["state"], shown["migrate"]["total"], shown["migrate"]["away"]) == ("emptying", 3, 0)
    ward.work()

    assert {ward.host_of(one) for one in servers} <= {"host3", "host4"}
    states = [stories.states(ward.cloud, one) for one in servers]
    assert states == [("active", None), ("paused", None), ("stopped", None)]
    last = [ward.cloud.history(one)[-1].action for one in servers]
    assert last == ["live-migration", "live-migration", "confirmResize"]
    ward.is_sound(*servers)
    assert ward.most == 2
    assert (ward.state(), ward.service().drain_wanted, ward.service().drain_reason) == ("draining", True, "new kernel")
    assert len(ward.moves().away) == 3
    assert ward.cloud.used()["host1"] == (0, 0)


def test_a_host_that_is_being_emptied_works_for_its_servers_and_takes_no_others(ward):
    first, second = ward.boot(2)
    ward.ask({"migrate": {"parallel": 1}})
    ward.round()
    assert ward.host_of(ward.cloud.boot(ward.admin, "new", availability_zone="nova")) != "host1"
    ward.do(second, {"os-stop": None})
    assert stories.states(ward.cloud, second) == ("stopped", None)
    (elsewhere,) = ward.boot(1, host="host3")
    refused = act(ward.admin, elsewhere, {"os-migrateLive": {"host": "host1", "block_migration": "auto"}})
    assert (refused.status_code, "host1 is draining" in stories.message(refused)) == (409, True)
    ward.work()
    assert "host1" not in {ward.host_of(first), ward.host_of(second)}
    ward.is_sound(first, second, elsewhere)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        ({"suspend": None}, "it is suspended: resume it"),
        ({"os-resetState": {"state": "error"}}, "it is in ERROR: reset its state, rebuild or delete it"),
        ({"resize": {"flavorRef": "2"}}, "it was resized: confirm or revert that"),
    ],
    ids=["suspended", "error", "resized"],
)
def test_who_cannot_be_moved_is_named_with_what_to_do_and_holds_the_drain_up(ward, body, advice):
    another_flavor()
    (server_id,) = ward.boot()
    ward.do(server_id, body)
    host = ward.host_of(server_id)
    ward.ask({"migrate": {}}, host)
    ward.work()
    shown = ward.ask({"extend": 0}, host)
    assert {"server": server_id, "why": advice} in shown["migrate"]["blockers"]
    assert ward.blockers(host)[server_id] == advice
    assert ward.state(host) == "emptying"


def another_flavor():
    Flavor.objects.create(flavor_id="2", name="m1.more", vcpus=2, memory_mb=1024, disk_gb=1, extra_specs={})


def test_a_blocker_that_is_gone_goes_on_by_itself(ward):
    (server_id,) = ward.boot()
    ward.do(server_id, {"suspend": None})
    ward.ask({"migrate": {}})
    ward.work()
    assert ward.state() == "emptying"
    ward.do(server_id, {"resume": None})
    ward.work()
    assert (ward.host_of(server_id) != "host1", ward.state()) == (True, "draining")
    ward.is_sound(server_id)


def test_a_server_deleted_meanwhile_is_off_the_list(ward):
    first, second = ward.boot(2)
    ward.ask({"migrate": {"parallel": 1}})
    ward.round()  # the first is on its way
    for one in (first, second):
        assert ward.admin.delete(f"/servers/{one}").status_code == 204
    ward.cloud.work()
    ward.work()
    assert (ward.moves().lines, ward.state()) == ((), "draining")
    assert ward.cloud.used()["host1"] == (0, 0)


def test_a_move_that_ends_while_it_is_looked_at_has_not_failed(ward, monkeypatch):
    """Seen in CI: "11 of 11 servers moved away", of twelve. One was held to have stayed, then to have left alone."""
    servers, ended, first = ward.boot(2), [], QuerySet.first
    ward.ask({"migrate": {"parallel": 2}})
    assert ward.round() == 2

    def and_then_it_ends(rows):
        found = first(rows)
        if rows.model in (Instance, InstanceAction) and not ended:
            ended.append(found)
            ward.cloud.work()
        return found

    monkeypatch.setattr(QuerySet, "first", and_then_it_ends)
    ward.round()
    assert ended
    ward.work()
    assert {line.server_id for line in ward.moves().away} == set(servers)


def test_a_server_somebody_else_moved_meanwhile_is_not_ours_to_bring_back(ward):
    (server_id,) = ward.boot()
    assert act(ward.admin, server_id, LIVE).status_code == 202
    ward.ask({"migrate": {}})
    ward.work()
    assert (ward.host_of(server_id) != "host1", ward.moves().lines, ward.state()) == (True, (), "draining")


def test_without_room_nothing_happens_to_a_server_until_there_is_some(ward):
    servers = ward.boot(2)
    full(ward, memory_mb=512)
    ward.ask({"migrate": {"parallel": 1}})
    ward.work()
    (left,) = [one for one in servers if ward.host_of(one) == "host1"]
    assert ward.blockers() == {left: "no room: No valid host was found. No host passed the filter for: memory."}
    assert [action.action for action in ward.cloud.history(left)] == ["create"]
    line = ward.moves().blocked[0]
    assert line.next_try > timezone.now()
    ward.work()  # not before its time
    assert ward.host_of(left) == "host1"
    full(ward, memory_mb=4096)
    ward.again()
    assert (ward.host_of(left) != "host1", ward.state()) == (True, "draining")
    ward.is_sound(*servers)


def full(ward, memory_mb):
    """host3 has so much memory, host4 none."""
    with target_cell(ward.cloud.cells["cell1"]):
        ComputeNode.objects.filter(host="host3").update(memory_mb=memory_mb)
        ComputeNode.objects.filter(host="host4").update(memory_mb=0)


def test_guests_shut_down_for_their_host_run_again_where_a_later_migrate_takes_them_and_after_the_return(
    ward, settings
):
    settings.RESUME_GUESTS = True
    _, stopped = servers = ward.boot(2)
    ward.do(stopped, {"os-stop": None})
    drained_with_guests(ward)
    assert [stories.states(ward.cloud, one) for one in servers] == [("stopped", None)] * 2

    ward.ask({"migrate": {}})
    ward.work()

    assert "host1" not in {ward.host_of(one) for one in servers}
    assert [stories.states(ward.cloud, one) for one in servers] == [("active", None), ("stopped", None)]
    ward.is_sound(*servers)
    ward.ask({"return": {}})
    ward.work()
    assert {ward.host_of(one) for one in servers} == {"host1"}
    assert [stories.states(ward.cloud, one) for one in servers] == [("active", None), ("stopped", None)]
    ward.is_sound(*servers)


def test_a_guest_shut_down_for_its_host_that_cannot_leave_comes_back_with_it(ward, settings):
    """Its move began, and failed: it is still to run with its host again."""
    settings.RESUME_GUESTS = True
    (server_id,) = ward.boot()
    drained_with_guests(ward)
    for name in ("host3", "host4"):
        ward.cloud.hosts[name].driver.orders.fail("settle", times=9, error=InsufficientResources)
    ward.ask({"migrate": {}})
    ward.work()
    assert (ward.host_of(server_id), stories.states(ward.cloud, server_id)) == ("host1", ("stopped", None))
    assert ward.cloud.row(server_id).resumes_with_host

    ward.ask(None)
    with target_cell(ward.cloud.cells["cell1"]):
        assert host_guests.bring_back("host1") == 1
    ward.cloud.work()
    assert stories.states(ward.cloud, server_id) == ("active", None)
    ward.is_sound(server_id)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_guest_shut_down_for_its_host_stays_off_elsewhere_if_guests_are_not_to_resume_or_its_user_moved_it(
    ward, settings, resumes
):
    settings.RESUME_GUESTS = resumes
    (server_id,) = ward.boot()
    drained_with_guests(ward)
    if resumes:
        ward.ask(None)
        ward.do(server_id, {"migrate": None}, {"confirmResize": None})
    else:
        ward.ask({"migrate": {}})
        ward.work()
    assert (ward.host_of(server_id) != "host1", stories.states(ward.cloud, server_id)) == (True, ("stopped", None))
    ward.is_sound(server_id)


def drained_with_guests(ward):
    """`host drain host1 --shutdown-guests`."""
    ward.ask({})
    with target_cell(ward.cloud.cells["cell1"]):
        host_guests.ask("host1", by="ann@desk")
    ward.cloud.work()


def test_a_move_that_fails_is_tried_again_later_and_later(ward):
    (server_id,) = ward.boot()
    for name in ("host3", "host4"):
        ward.cloud.hosts[name].driver.orders.fail("expect", -1, InsufficientResources)
    ward.ask({"migrate": {}})
    pauses = []
    for tries in (1, 2, 3):
        ward.again()
        (line,) = ward.moves().blocked
        pauses.append((line.next_try - timezone.now()).total_seconds())
        assert (line.tries, ward.host_of(server_id)) == (tries, "host1")
    assert pauses[0] < pauses[1] < pauses[2]
    for name in ("host3", "host4"):
        ward.cloud.hosts[name].driver.orders.fail("expect", 0)
    ward.again()
    assert ward.state() == "draining"
    ward.is_sound(server_id)


def test_a_cancel_lets_those_on_their_way_arrive_and_leaves_the_others(ward):
    servers = ward.boot(4)
    ward.ask({"migrate": {"parallel": 2}})
    assert ward.round() == 2
    assert ward.ask(None) is None
    ward.work()
    assert sorted(ward.host_of(one) == "host1" for one in servers) == [False, False, True, True]
    assert (ward.state(), len(ward.moves().lines), len(ward.moves().away)) == ("", 2, 2)
    ward.is_sound(*servers)
    assert ward.host_of(ward.boot(1)[0]) == "host1"


def test_those_that_left_come_back_and_those_with_another_home_do_not(ward):
    running, stopped, moved, gone = servers = ward.boot(4)
    ward.do(stopped, {"os-stop": None})
    ward.ask({"migrate": {"parallel": 2}})
    ward.work()
    elsewhere = "host4" if ward.host_of(moved) == "host3" else "host3"
    ward.do(moved, {"os-migrateLive": {"host": elsewhere, "block_migration": "auto"}})
    ward.admin.delete(f"/servers/{gone}")
    ward.cloud.work()
    with target_cell(ward.cloud.cells["cell1"]):
        alone = draining.undo(ward.service(), bring_back=1)
    assert [(line.server_id, line.at) for line in alone] == [(moved, elsewhere)]
    ward.most = 0
    ward.work()
    assert [ward.host_of(one) for one in (running, stopped, moved)] == ["host1", "host1", elsewhere]
    assert (stories.states(ward.cloud, stopped), ward.most) == (("stopped", None), 1)
    assert (ward.moves().lines, ward.service().drain_moves, ward.state()) == ((), 0, "")
    ward.is_sound(*servers[:3])


def test_a_return_asked_while_servers_still_leave_brings_those_back_too(ward):
    first, second = ward.boot(2)
    ward.ask({"migrate": {"parallel": 1}})
    ward.round()
    ward.ask({"return": {"parallel": 2}})
    ward.work()
    assert (ward.host_of(first), ward.host_of(second)) == ("host1", "host1")
    assert [action.action for action in ward.cloud.history(first)] == ["create", "live-migration", "live-migration"]
    assert len(ward.cloud.history(second)) == 1
    ward.is_sound(first, second)


def test_a_return_without_room_waits_and_a_drain_ends_it(ward):
    (server_id,) = ward.boot()
    ward.ask({"migrate": {}})
    ward.work()
    with target_cell(ward.cloud.cells["cell1"]):
        ComputeNode.objects.filter(host="host1").update(memory_mb=0)
    ward.ask({"return": {}})
    ward.work()
    assert ward.blockers()[server_id].startswith("no room: ")
    ward.ask({})
    ward.work()
    assert (ward.state(), [line.state for line in ward.moves().lines]) == ("draining", [State.AWAY])


def test_drained_twice_changes_nothing_but_how_many_at_once(ward):
    ward.boot(3)
    ward.ask({"migrate": {"parallel": 1}, "reason": "new disk"})
    assert ward.round() == 1
    ward.ask({"migrate": {"parallel": 2}})
    assert ward.round() == 2
    ward.work()
    assert ward.state() == "draining"
    again = ward.ask({"migrate": {"parallel": 2}})
    assert (again["state"], again["reason"], again["migrate"]["away"]) == ("draining", "new disk", 3)


def test_a_plain_drain_in_the_middle_lets_the_servers_stay(ward):
    servers = ward.boot(3)
    ward.ask({"migrate": {"parallel": 1}})
    ward.round()
    ward.ask({})
    assert (ward.state(), ward.service().drain_moves) == ("draining", 0)
    assert ward.round() == 1
    assert len(ward.moves().lines) == 1
    ward.cloud.work()
    assert sum(ward.host_of(one) == "host1" for one in servers) >= 2


def test_at_its_deadline_the_host_drains_with_who_is_left(ward):
    (server_id,) = ward.boot()
    ward.do(server_id, {"suspend": None})
    ward.ask({"migrate": {}, "timeout": 600})
    ward.work()
    assert ward.state() == "emptying"
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(drain_deadline=timezone.now() - timedelta(seconds=1))
    ward.work()
    assert (ward.state(), list(ward.blockers())) == ("draining", [server_id])


def test_a_cold_move_cut_short_by_a_drain_is_confirmed_when_its_source_takes_work(ward):
    (server_id,) = ward.boot()
    ward.do(server_id, {"os-stop": None})
    ward.ask({"migrate": {}})
    ward.round()
    ward.cloud.work()
    ward.ask({})  # the servers are to stay after all, and this one has gone
    ward.work()
    assert stories.states(ward.cloud, server_id) == ("resized", None)
    assert "is confirmed when host host1 takes work" in ward.moves().under_way[0].why
    ward.ask(None)
    ward.work()
    assert stories.states(ward.cloud, server_id) == ("stopped", None)
    assert [line.state for line in ward.moves().lines] == [State.AWAY]
    ward.is_sound(server_id)


def test_a_user_may_take_a_cold_move_back_and_it_is_tried_again(ward):
    (server_id,) = ward.boot()
    ward.do(server_id, {"os-stop": None})
    ward.ask({"migrate": {}})
    ward.round()
    ward.cloud.work()
    ward.do(server_id, {"revertResize": None})
    assert ward.host_of(server_id) == "host1"
    ward.again()
    ward.again()
    assert (ward.host_of(server_id) != "host1", ward.state()) == (True, "draining")
    last = [action.action for action in ward.cloud.history(server_id)][-3:]
    assert last == ["revertResize", "migrate", "confirmResize"]
    ward.is_sound(server_id)


def test_a_host_that_ends_while_its_servers_return_gets_them_in_its_next_life(ward):
    (server_id,) = ward.boot()
    ward.ask({"migrate": {}})
    ward.work()
    ward.ask({"return": {}})
    ward.round()
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(draining_since=timezone.now())  # SIGTERM
    ward.work()
    (line,) = ward.moves().lines
    assert (line.state, ward.host_of(server_id) == "host1") == (State.RETURN_WAITING, False)
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(draining_since=None)
    ward.again()
    assert (ward.host_of(server_id), ward.moves().lines) == ("host1", ())
    ward.is_sound(server_id)


@pytest.mark.parametrize("then_exit", [False, True])
def test_a_host_that_is_restarted_while_it_is_emptied_goes_on_with_it(ward, then_exit):
    """Its goodbye took the operator's request back, and the servers that had left were called home."""
    first, second = ward.boot(2)
    ward.ask({"migrate": {"parallel": 1}, "exit": then_exit})
    ward.round()
    host = ward.cloud.hosts["host1"]
    with target_cell(host.cell):
        services = Service.objects.filter(host="host1")
        services.update(incarnation=host.incarnation)
        goodbye._write(worker.Worker("host", "host1", host.cell.id, host.driver, host.incarnation), 0)
        service = services.get()
        assert (service.drain_state, service.is_returning, service.drain_then_exit) == ("emptying", False, then_exit)
        services.update(ended_at=None)
    ward.work()
    assert "host1" not in {ward.host_of(first), ward.host_of(second)}
    assert ward.service().drain_wanted
    ward.is_sound(first, second)


def test_two_hosts_emptied_at_once_send_nobody_to_each_other(ward):
    servers = ward.boot(2) + ward.boot(2, host="host3")
    for host in ("host1", "host3"):
        ward.ask({"migrate": {"parallel": 1}}, host)
    ward.work()
    assert {ward.host_of(one) for one in servers} == {"host4"}
    assert (ward.state("host1"), ward.state("host3")) == ("draining", "draining")
    ward.is_sound(*servers)


@pytest.mark.parametrize("step", ["check_destination", "check_source", "expect", "migrate"])
def test_a_destination_that_is_to_be_emptied_meanwhile_is_left_again_or_never_reached(ward, step):
    (server_id,) = ward.boot()
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host4").update(disabled=True)
    ward.ask({"migrate": {}})
    ward.round()
    two_hosts.until(ward.cloud, step)  # on its way to host3
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host4").update(disabled=False)
    ward.ask({"migrate": {}}, "host3")
    for _ in range(3):
        ward.again()
    assert ward.host_of(server_id) == "host4"
    assert (ward.state("host1"), ward.state("host3")) == ("draining", "draining")
    ward.is_sound(server_id)


def test_two_conductors_never_move_more_than_wanted(ward):
    ward.boot(4)
    ward.ask({"migrate": {"parallel": 2}})
    stories.at_once(4, lambda _: ward.round())
    assert len(ward.moves().under_way) == 2
    with target_cell(ward.cloud.cells["cell1"]):
        assert InstanceAction.objects.filter(key__in=MOVES).count() == 2
    ward.work()
    assert ward.most == 2


def test_a_user_who_resizes_a_server_that_left_keeps_the_last_word(ward):
    another_flavor()
    (server_id,) = ward.boot()
    ward.ask({"migrate": {}})
    ward.round()
    ward.cloud.work()
    ward.do(server_id, {"resize": {"flavorRef": "2"}})
    ward.work()
    assert stories.states(ward.cloud, server_id) == ("resized", None)


def test_a_host_that_is_down_is_emptied_when_it_is_back(ward):
    (server_id,) = ward.boot()
    ward.ask({"migrate": {}})
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(last_seen_up=timezone.now() - timedelta(hours=1))
    ward.work()
    assert (ward.state(), ward.host_of(server_id)) == ("emptying", "host1")
    with target_cell(ward.cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(last_seen_up=timezone.now())
    ward.work()
    assert ward.state() == "draining"


def test_what_would_move_and_whether_there_is_room_is_known_before(ward):
    running, stopped, suspended = ward.boot(3)
    ward.do(stopped, {"os-stop": None})
    ward.do(suspended, {"suspend": None})
    with target_cell(ward.cloud.cells["cell1"]):
        found = forecast.of_host("host1")
        assert (found.live, found.cold, found.busy, found.hosts, found.fits) == (1, 1, 0, 2, True)
        assert [line.server_id for line in found.blocked] == [suspended]
        assert found.needs == {"vcpus": 2, "memory_mb": 1024, "disk_gb": 2}
    full(ward, memory_mb=100)
    with target_cell(ward.cloud.cells["cell1"]):
        found = forecast.of_host("host1")
        assert ({line.server_id for line in found.homeless}, found.fits) == ({running, stopped}, False)
        assert found.free["memory_mb"] == 100
    assert (ward.state(), ward.moves().lines) == ("", ())


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("name", ["pick", "give_back"])
def test_a_conductor_that_dies_in_the_middle_loses_no_turn(ward, name, when):
    (server_id,) = ward.boot()
    if name == "give_back":
        for host in ("host3", "host4"):
            ward.cloud.hosts[host].driver.orders.fail("expect", 1, InsufficientResources)
    ward.ask({"migrate": {}})
    ward.round()
    two_hosts.killed(ward.cloud, two_hosts.until(ward.cloud, name), when)
    for _ in range(3):
        ward.again()
    assert ward.state() == "draining"
    ward.is_sound(server_id)
