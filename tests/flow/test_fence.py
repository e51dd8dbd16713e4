"""What a worker may still write after a pause, a half transaction, a restart, or beside a twin: nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import DataError, InterfaceError, OperationalError, connections

from cells.context import target_cell
from compute.models import Flavor, Instance, InstanceAction, Service, Step
from compute.operations import journal, recovery, registry, runner
from compute.operations.params import ActionParams
from compute.virt.base import VirtError
from compute.virt.fake.effects import Effect
from tasks import heartbeat, periodic, run_step, worker
from tasks.tracker import Kind, Work, tracker
from tests.byhand import Cloud
from tests.flow import stories, two_hosts
from tests.flow.stories import act, begin, states
from tests.flow.test_races import meanwhile  # noqa: F401
from tests.flow.two_hosts import LIVE, claimed, homes, until


@contextmanager
def fails_once(cloud: Cloud, needle: str, error: Exception, *, cell: str = "cell1") -> Iterator[None]:
    """The database fails the first statement that has these words, in the middle of its transaction."""
    left = [error]

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if left and all(word in f"{sql} {[str(one) for one in params or ()]}" for word in needle.split("…")):
            raise left.pop()
        return run(sql, params, many, context)

    with connections[cloud.cells[cell].alias].execute_wrapper(execute):
        yield
    assert not left, "the statement never came"


@pytest.fixture
def two(cloud: Cloud) -> Cloud:
    """host1 and host3 in cell1, a larger flavor; cell2 takes no servers."""
    cloud.add_host("host3", "cell1")
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    Flavor.objects.create(flavor_id="2", name="m1.large", vcpus=4, memory_mb=2048, disk_gb=2)
    return cloud


def resize(api: Any, cloud: Cloud) -> str:
    server_id = cloud.boot(api)
    assert act(api, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    return server_id


@contextmanager
def paused_at(cloud: Cloud, needle: str, happens: Callable[[], object]) -> Iterator[None]:
    """Whoever is about to send that statement to cell1 is paused before it, while something else happens."""
    left = [happens]

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if left and needle in sql:
            left.pop()()
        return run(sql, params, many, context)

    with connections[cloud.cells["cell1"].alias].execute_wrapper(execute):
        yield
    assert not left, "the statement never came"


def wake(cloud: Cloud, step: Step) -> None:
    """A worker that was paused goes on."""
    if step.host:
        cloud.hosts[step.host].finish(step)
    else:
        with target_cell(cloud.cells["cell1"]):
            runner.run_step(registry.named(step.action.key), step, None)


# -- half transactions


@pytest.mark.parametrize("body", [{"resize": {"flavorRef": "2"}}, LIVE], ids=["resize", "live migration"])
def test_a_move_that_failed_is_undone_though_the_database_rolled_its_record_back_once(body, admin, two):
    server_id = cloud_boot = two.boot(admin, host="host1")
    assert act(admin, server_id, body).status_code == 202
    until(two, "pre_migrate")
    two.hosts["host3"].driver.faults.fail("pre_migrate", error=VirtError)
    with fails_once(two, "INSERT INTO \"compute_step\"…cancel_pre_migrate", OperationalError("the disk is full")):
        two.work()
    assert states(two, cloud_boot) == ("active", None)
    assert (homes(two, server_id), claimed(two, server_id)) == (["host1"], {"host1"})
    assert two.history(server_id)[-1].message == "Error"
    assert two.row(server_id).fault["message"] == "pre_migrate failed as injected"
    stories.settled(two)


def test_a_step_whose_end_the_database_refuses_fails_at_once_and_is_not_tried_for_two_minutes(api, cloud):
    server_id = begin("pause", api, cloud)
    cell = cloud.cell_of(server_id).name
    with fails_once(cloud, "UPDATE \"compute_step\"…done", DataError("value too long"), cell=cell):
        cloud.work()
    assert states(cloud, server_id) == ("active", None)
    assert "value too long" in cloud.history(server_id)[-1].outcome


def test_a_step_whose_end_meets_a_closed_connection_is_recorded_all_the_same(api, cloud):
    server_id = begin("pause", api, cloud)
    cell = cloud.cell_of(server_id).name
    with fails_once(cloud, "UPDATE \"compute_step\"…done", InterfaceError("connection already closed"), cell=cell):
        cloud.work()
    assert states(cloud, server_id) == ("paused", None)


# -- pauses


def test_a_conductor_that_was_paused_changes_no_destination_of_a_migration_that_runs(admin, two):
    two.add_host("host4", "cell1")
    server_id = two.boot(admin, host="host1")
    assert act(admin, server_id, LIVE).status_code == 202
    paused = two_hosts.claim(two, until(two, "pick"))

    def another_conductor_takes_the_step_over() -> None:
        assert two_hosts.restart(two, paused) == 1
        until(two, "migrate_out")
        chosen.append(two_hosts.action_of(two, server_id).params["destination"])

    chosen: list[str] = []
    with paused_at(two, 'FROM "compute_computenode"', another_conductor_takes_the_step_over):
        wake(two, paused)

    [destination] = chosen
    assert two_hosts.action_of(two, server_id).params["destination"] == destination
    assert claimed(two, server_id) == {"host1", destination}
    two.work()
    assert (two.row(server_id).host, homes(two, server_id)) == (destination, [destination])
    assert claimed(two, server_id) == {destination}


@pytest.mark.parametrize("key", ["create", "resize"])
def test_a_conductor_that_was_paused_claims_no_room(key, api, admin, two):
    two.add_host("host4", "cell1")
    if key == "create":
        server_id = begin("create", api, two)
        two.hosts[two.queued()[0][1].host].driver.faults.fail("spawn")
        paused = two_hosts.claim(two, until(two, "reschedule"))
    else:
        server_id = resize(api, two)
        paused = two_hosts.claim(two, until(two, "pick"))

    def another_conductor_takes_the_step_over() -> None:
        assert two_hosts.restart(two, paused) == 1
        until(two, "build" if key == "create" else "migrate_out")
        seen.append((two.row(server_id).host, claimed(two, server_id)))

    seen: list[tuple[str, set[str]]] = []
    with paused_at(two, 'FROM "compute_computenode"', another_conductor_takes_the_step_over):
        wake(two, paused)
    assert [(two.row(server_id).host, claimed(two, server_id))] == seen
    two.work()
    assert homes(two, server_id) == [two.row(server_id).host]
    if key == "create":
        stories.settled(two)


def test_a_host_that_was_paused_asks_before_it_touches_the_guest(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    paused = host.begin(cloud.queued()[0][1].pk)
    assert host.restart() == 1
    cloud.work()
    stories.lead(api, cloud, server_id, ("unpause",))
    assert act(api, server_id, {"pause": None}).status_code == 202  # so the task is one that it would expect

    wake(cloud, paused)

    assert host.driver.power_state(server_id).name == "RUNNING"
    cloud.work()
    assert states(cloud, server_id) == ("paused", None)


def test_a_worker_that_was_paused_for_longer_than_its_lease_does_nothing_while_the_database_is_away(
    api, cloud, settings
):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    settings.SERVICE_DOWN_TIME = 0.0
    cell = cloud.cell_of(server_id).name
    with (
        fails_once(cloud, 'AS "a" FROM "compute_step"…"token"', OperationalError("no answer"), cell=cell),
        pytest.raises(OperationalError),
    ):
        host.run(cloud.queued()[0][1].pk)
    assert host.driver.power_state(server_id).name == "RUNNING"
    settings.SERVICE_DOWN_TIME = 60.0
    assert host.restart() == 1
    cloud.work()
    assert states(cloud, server_id) == ("paused", None)


# -- restarts and twins


def conductor(cloud: Cloud, name: str = "c1") -> worker.Worker:
    return worker.Worker("conductor", name, cloud.cells["cell1"].id)


def test_a_conductor_that_restarted_keeps_the_step_it_claims_before_its_first_beat(admin, two, meanwhile, monkeypatch):  # noqa: F811
    server_id = two.boot(admin, host="host1")
    before = conductor(two)
    heartbeat.beat(before, heartbeat.WorkerStatus())
    with target_cell(two.cells["cell1"]):
        Service.objects.filter(host="c1").update(ended_at=Service.objects.get(host="c1").last_seen_up)
    assert act(admin, server_id, LIVE).status_code == 202
    monkeypatch.setattr(worker, "_current", conductor(two))
    taken = []

    def a_peer_looks() -> None:
        with target_cell(two.cells["cell1"]):
            taken.append(recovery.recover_dead_conductors("nova-conductor@peer"))

    meanwhile("step.claimed:pick", a_peer_looks)
    run_step.run(until(two, "pick").pk)

    assert taken == [0]
    two.work()
    assert len(homes(two, server_id)) == 1
    stories.settled(two)


def test_a_host_does_not_take_the_step_it_has_just_claimed_for_a_stray(api, cloud):
    server_id = begin("pause", api, cloud)
    host, [(cell, step)] = cloud.host_of(server_id), cloud.queued()
    me = worker.Worker("host", host.name, cell.id, host.driver, host.incarnation)
    begun: list[Step] = []

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not begun and "running" in map(str, params or ()) and sql.startswith("SELECT"):
            begun.append(step)
            tracker.begin(Work(Kind.REQUEST, "run_step", "the try", step_id=step.pk))
            begun[0] = host.begin(step.pk)
        return run(sql, params, many, context)

    try:
        with target_cell(cell), connections[cell.alias].execute_wrapper(execute):
            periodic._recover_strays(me)
    finally:
        tracker.end("the try")
    with target_cell(cell):
        assert Step.objects.get(pk=step.pk).state == "running"
    host.finish(begun[0])
    assert states(cloud, server_id) == ("paused", None)


def test_of_two_workers_of_one_name_the_older_takes_no_steps_and_stops(api, cloud):
    server_id = begin("pause", api, cloud)
    host, [(cell, step)] = cloud.host_of(server_id), cloud.queued()
    older = worker.Worker("host", host.name, cell.id, host.driver, "older")
    younger = worker.Worker("host", host.name, cell.id, host.driver, "younger")
    heartbeat.beat(older, heartbeat.WorkerStatus())
    heartbeat.beat(younger, heartbeat.WorkerStatus())
    with target_cell(cell):
        claim = journal.claim(step.pk, younger.name, younger.incarnation, host=host.name)
        assert claim is not None
        assert periodic._recover_strays(older) == 0
        assert journal.is_ours(claim)
        with pytest.raises(heartbeat.Superseded):
            heartbeat.beat(older, heartbeat.WorkerStatus())
        assert Service.objects.get(host=host.name, binary="nova-compute").incarnation == "younger"
        Step.objects.filter(pk=step.pk).update(state="queued", token="", incarnation="")
        assert journal.claim(step.pk, older.name, older.incarnation, host=host.name) is None


def test_a_service_whose_record_an_operator_deleted_beats_on(cloud):
    me = conductor(cloud)
    heartbeat.beat(me, heartbeat.WorkerStatus())
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="c1").delete()
        heartbeat.beat(me, heartbeat.WorkerStatus())
        assert Service.objects.get(host="c1").beats


# -- what must not be given up


def test_a_resize_whose_undo_finds_the_hypervisor_away_for_long_is_undone_when_it_is_back(api, admin, two):
    server_id = resize(api, two)
    source = two.row(server_id).host
    driver = two.hosts[source].driver
    until(two, "migrate_out")
    driver.faults.fail("migrate_out", error=VirtError)
    until(two, "revert_migration")
    driver.go_away()
    for _ in range(12):
        two.work()
        stories.later(two)
    with target_cell(two.cells["cell1"]):
        waits = Step.objects.get(server_id=server_id, name="revert_migration")
    assert (waits.state, waits.attempts) == ("queued", 0)
    assert waits.details.startswith(f"waits for the hypervisor of host {source}: ")

    driver.come_back()
    stories.later(two)
    two.work()

    assert (states(two, server_id), homes(two, server_id)) == (("active", None), [source])
    stories.true_to_the_guest(two, server_id)
    stories.settled(two)


def test_an_undo_that_kills_its_worker_again_and_again_is_not_given_up(api, two):
    server_id = resize(api, two)
    source = two.row(server_id).host
    until(two, "migrate_out")
    destination = two_hosts.action_of(two, server_id).params["destination"]
    two.hosts[destination].driver.faults.fail("finish_migration", error=VirtError)
    until(two, "revert_migration")
    for _ in range(10):
        stories.later(two)
        two_hosts.restart(two, two_hosts.claim(two, two_hosts.waiting(two)))
    stories.later(two)
    two.work()
    assert (states(two, server_id), homes(two, server_id)) == (("active", None), [source])
    stories.settled(two)


def test_one_row_that_cannot_be_recovered_keeps_no_other_one_waiting(api, two):

    with target_cell(two.cells["cell1"]):
        Service.objects.filter(host="host3").update(disabled=True)
    lost, other = two.boot(api), two.boot(api)
    host = two.hosts["host1"]
    for server_id in (lost, other):
        assert act(api, server_id, {"pause": None}).status_code == 202
    for _, step in two.queued():
        host.begin(step.pk)
    with target_cell(host.cell):
        Step.objects.filter(server_id=lost).update(attempts=100)
        Instance.objects.filter(uuid=lost).update(uuid="of-no-backup")
    host.restart()
    two.work()
    with target_cell(host.cell):
        broken = Step.objects.get(server_id=lost, name="pause")
        assert (broken.state, broken.details[:15]) == ("running", "recovery failed")
    assert states(two, other) == ("paused", None)


# -- one after the other


@pytest.mark.parametrize("body", [{"reboot": {"type": "HARD"}}, {"os-stop": {"shutdown_type": "HARD"}}],
                         ids=["reboot", "stop"])  # fmt: skip
def test_a_hard_request_over_a_hard_request_is_carried_out_and_is_no_error(body, api, cloud):
    server_id = cloud.boot(api)
    assert act(api, server_id, body).status_code == 202
    host, [(_, step)] = cloud.host_of(server_id), cloud.queued()
    first = host.begin(step.pk)
    assert act(api, server_id, body).status_code == 202
    host.finish(first)
    assert states(cloud, server_id)[1] is not None  # the second one has it

    cloud.work()

    assert [action.message for action in cloud.history(server_id)] == [None, None, None]
    assert states(cloud, server_id)[1] is None
    stories.true_to_the_guest(cloud, server_id)
    if "reboot" in body:
        effects = [one.effect for one in host.driver.effects(server_id)]
        assert effects.count(Effect.REBOOTED) == 2
    stories.settled(cloud)


@pytest.mark.parametrize("asked", ["resize", "live migration"])
def test_a_request_knows_the_server_as_it_is_when_it_is_taken(asked, api, admin, two):
    """Between the look at a server and its taking another request may end: it was stopped, or it moved."""
    server_id = two.boot(admin, host="host1")

    def another_request_ends() -> None:
        other = {"os-stop": None} if asked == "resize" else LIVE
        assert act(admin, server_id, other).status_code == 202
        two.work()

    with paused_at(two, 'FROM "compute_computenode"', another_request_ends):
        body = {"resize": {"flavorRef": "2"}} if asked == "resize" else LIVE
        assert act(admin, server_id, body).status_code == 202
    two.work()

    host = two.row(server_id).host
    assert homes(two, server_id) == [host]
    if asked == "resize":
        assert two.hosts[host].driver.power_state(server_id).name == "SHUTDOWN"
        assert act(admin, server_id, {"confirmResize": None}).status_code == 204
        two.work()
        assert states(two, server_id) == ("stopped", None)
    else:
        assert (host, states(two, server_id)) == ("host1", ("active", None))  # there and back
    stories.settled(two)


def test_a_server_that_is_reverted_and_resized_at_once_is_counted_as_large_as_it_is(api, two):
    from cells.models import RequestSpec

    server_id = resize(api, two)
    two.work()
    assert act(api, server_id, {"revertResize": None}).status_code == 202
    late = until(two, "update_quota")
    assert act(api, server_id, {"resize": {"flavorRef": "2"}}).status_code == 202
    for _ in range(3):  # the new resize is quicker
        for _, step in two.queued():
            if step.pk != late.pk and step.name in ("check_source", "pick"):
                two._deliver(two.cells["cell1"], step)
    two.work()

    assert states(two, server_id) == ("resized", None)
    assert RequestSpec.objects.get(pk=server_id).vcpus == two.row(server_id).vcpus == 4
    assert act(api, server_id, {"confirmResize": None}).status_code == 204
    two.work()
    assert RequestSpec.objects.get(pk=server_id).vcpus == 4


def test_a_build_that_failed_keeps_what_others_wrote_about_it_meanwhile(api, two):
    server_id = begin("create", api, two)
    host = two.hosts[two.queued()[0][1].host]
    host.driver.faults.fail("spawn")
    step = host.begin(two.queued()[0][1].pk)
    assert step.action.params  # as it read them
    with target_cell(two.cells["cell1"]):
        action = InstanceAction.objects.get(server_id=server_id)
        journal.change_params(action, ActionParams, lambda params: replace(params, empties=host.name))
        InstanceAction.objects.filter(pk=action.pk).update(params=action.params | {"of_a_newer_version": [1]})
    host.finish(step)
    params = two.history(server_id)[-1].params
    assert (params["tried"], params["empties"], params["of_a_newer_version"]) == ([host.name], host.name, [1])
    two.work()
