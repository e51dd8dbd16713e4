"""Clocks that are wrong for a while: a process's own, or the database's that was set forward or back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells.context import target_cell
from cells.models import BuildRequest
from compute.builds import leases
from compute.hosts import drain_handback
from compute.models import HostCall, Instance, Service, Step
from compute.operations import host_request, journal, recovery
from compute.periodic import reclaim_deleted
from tasks import heartbeat, worker
from tests.conftest import url_of
from tests.flow import stories
from tests.flow.clocks import DAY, clock_of_a_process
from tests.flow.stories import begin, ends_well, only_step


def state_of(admin, host):
    found = admin.get("/os-services?binary=nova-compute").json()["services"]
    return {one["host"]: one["state"] for one in found}[host]


def beat(cloud, name, settings):
    host = cloud.hosts[name]
    settings.ROLE, settings.HOST, settings.DRIVER = "host", host.name, "fake"
    settings.CELL_UUID, settings.CELL_DATABASE_URL = host.cell.id, url_of(host.cell.alias)
    settings.CELL_BROKER_URL = "memory://"
    try:
        heartbeat.beat(worker.register(), heartbeat.WorkerStatus())
    finally:
        worker._current = None


# -- heartbeats


def test_a_host_that_died_with_a_heartbeat_of_tomorrow_is_down(admin, cloud):
    with target_cell(cloud.cells["cell1"]):
        Service.objects.update(last_seen_up=timezone.now() + DAY)
    assert state_of(admin, "host1") == "down"


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_host_whose_clock_is_wrong_is_up_while_it_beats(ahead, admin, cloud, settings):
    with clock_of_a_process(ahead):
        beat(cloud, "host1", settings)
    assert state_of(admin, "host1") == "up"


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_an_api_whose_clock_is_wrong_sees_which_hosts_are_up(ahead, admin, cloud):
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(last_seen_up=timezone.now() - timedelta(hours=1))
    with clock_of_a_process(ahead):
        assert (state_of(admin, "host1"), state_of(admin, "host2")) == ("up", "down")


def test_the_steps_of_a_conductor_that_died_with_a_heartbeat_of_tomorrow_are_taken_over(api, cloud):
    begin_a_search(api, cloud)
    with target_cell(cloud.cells["cell1"]):
        search = only_step(cloud)
        Service.objects.create(binary="nova-conductor", host="dead", last_seen_up=timezone.now() + DAY)
        with clock_of_a_process(DAY):
            assert journal.claim(search.pk, "nova-conductor@dead", "gone")
        recovery.recover_dead_conductors("nova-conductor@me")
        Service.objects.filter(host="dead", last_seen_up__lt=timezone.now() + timedelta(hours=1)).update(
            last_seen_up=timezone.now() - timedelta(minutes=2)  # its last beat was taken for one of then
        )
        assert recovery.recover_dead_conductors("nova-conductor@me") == 1


def test_a_database_whose_clock_is_set_back_an_hour_takes_no_steps_from_conductors_that_live(api, cloud):
    begin_a_search(api, cloud)
    an_hour = timedelta(hours=1)
    with target_cell(cloud.cells["cell1"]):
        Service.objects.create(binary="nova-conductor", host="alive", last_seen_up=timezone.now() + an_hour)
        search = journal.claim(only_step(cloud).pk, "nova-conductor@alive", "here")
        Step.objects.filter(pk=search.pk).update(started_at=timezone.now() + an_hour)
        assert recovery.recover_dead_conductors("nova-conductor@me") == 0


def begin_a_search(api, cloud):
    """A conductor's step: which other host takes a server its first one could not build?"""
    cloud.hosts["host2"].report()
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    cloud.hosts["host1"].driver.faults.fail("spawn")
    begin("create", api, cloud)
    cloud.hosts["host1"].run(only_step(cloud).pk)


# -- messages and tries


def test_a_message_sent_tomorrow_is_sent_again(api, cloud):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        Step.objects.filter(state="queued").update(sent_at=timezone.now() + DAY)
        assert recovery.relay() == 1
        assert recovery.relay() == 0  # it was just sent


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_conductor_whose_clock_is_wrong_sends_again_what_is_late_and_nothing_else(ahead, api, cloud):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)), clock_of_a_process(ahead):
        assert recovery.relay() == 0
        Step.objects.filter(state="queued").update(sent_at=timezone.now() - ahead - timedelta(seconds=16))
        assert recovery.relay() == 1


def test_a_boot_whose_message_was_sent_tomorrow_is_sent_again(api, cloud):
    api.send("post", "/servers", cloud.body())
    BuildRequest.objects.update(sent_at=timezone.now() + DAY)
    assert leases.relay() == 1
    assert leases.relay() == 0


def test_a_step_that_is_to_be_tried_again_tomorrow_is_tried_now(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        Step.objects.filter(state="queued").update(sent_at=None, not_before=timezone.now() + DAY)
        assert drain_handback.send_next(host.name, 1) == 1
        assert recovery.relay() == 1
    cloud.work()
    ends_well("pause", cloud, server_id)


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_host_whose_clock_is_wrong_tries_again_after_its_pause_and_not_before(ahead, api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    host.driver.go_away()
    with clock_of_a_process(ahead):
        assert host.run(only_step(cloud).pk)
        assert not host.run(only_step(cloud).pk)
    host.driver.come_back()
    assert not host.run(only_step(cloud).pk)
    seconds = (only_step(cloud).not_before - timezone.now()).total_seconds()
    assert -30 < seconds <= 2.5


def test_a_step_that_waits_until_tomorrow_for_its_turn_looks_for_itself(api, cloud):
    server_id = begin("pause", api, cloud)
    with target_cell(cloud.cell_of(server_id)):
        Step.objects.filter(state="queued").update(state="waiting", not_before=timezone.now() + DAY)
        recovery.relay()
        assert only_step(cloud).state == "queued"


# -- leases


def test_a_build_request_leased_until_tomorrow_is_taken_by_another_scheduler(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    BuildRequest.objects.update(lease_holder="scheduler/dead", lease_until=timezone.now() + DAY)
    cloud.work()
    assert cloud.row(server_id).vm_state == "active"


def test_a_scheduler_whose_clock_is_ahead_does_not_take_what_another_one_holds(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    held = leases.take(server_id)
    with clock_of_a_process(DAY):
        assert leases.take(server_id) is None
    leases.renew(held)


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_scheduler_that_dies_with_a_wrong_clock_holds_a_request_for_half_a_minute(ahead, api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    with clock_of_a_process(ahead):
        assert leases.take(server_id)
    seconds = (BuildRequest.objects.get().lease_until - timezone.now()).total_seconds()
    assert 0 < seconds <= 30.5


# -- questions to a host


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_host_whose_clock_is_wrong_answers_for_the_console_only_while_the_user_waits(ahead, api, cloud):
    server_id = cloud.boot(api)
    with target_cell(cloud.cell_of(server_id)), clock_of_a_process(ahead):
        call = HostCall.objects.create(
            host="host1", server_id=server_id, method="x", expires_at=timezone.now() - ahead + timedelta(seconds=9)
        )  # fmt: skip
        assert host_request.claim(call.pk) is not None
        for never in (-1, 86400):
            call = HostCall.objects.create(
                host="host1", server_id=server_id, method="x",
                expires_at=timezone.now() - ahead + timedelta(seconds=never),
            )  # fmt: skip
            assert host_request.claim(call.pk) is None
    stories.settled(cloud)


def test_questions_that_expire_tomorrow_are_swept(api, cloud):
    with target_cell(cloud.cells["cell1"]):
        HostCall.objects.create(host="h", server_id="s", method="x", expires_at=timezone.now() + DAY)
        HostCall.objects.create(host="h", server_id="s", method="x", expires_at=timezone.now() + timedelta(seconds=9))
        recovery.relay()
        assert HostCall.objects.count() == 1


# -- what is kept for a time


@pytest.mark.parametrize("ahead", [DAY, -DAY], ids=["ahead", "behind"])
def test_a_soft_deleted_server_is_kept_for_its_hour_whatever_the_clocks_of_host_and_conductor(
    ahead, api, cloud, settings
):
    settings.RECLAIM_INSTANCE_INTERVAL = 3600
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    with clock_of_a_process(ahead):
        cloud.work()
    with target_cell(cloud.cell_of(server_id)):
        assert reclaim_deleted.reclaim() == 0
        with clock_of_a_process(-ahead):
            assert reclaim_deleted.reclaim() == 0
            Instance.objects.update(soft_deleted_at=timezone.now() + ahead - timedelta(hours=2))
            assert reclaim_deleted.reclaim() == 1
