"""What becomes of a host's work when the host drains or is cut off, and how an old host is reached."""

from __future__ import annotations

from cells.context import target_cell
from compute.hosts import drain_handback
from compute.models import Service, Step
from compute.operations import dispatch, journal, recovery
from tests.flow.stories import begin, ends_well, only_step, settled, states


def test_a_boot_nobody_has_begun_goes_to_another_host_of_the_cell(api, cloud):
    cloud.add_host("host1b", "cell1", memory_mb=200_000)
    with target_cell(cloud.cells["cell2"]):
        Service.objects.update(disabled=True)
    server_id = begin("create", api, cloud)
    assert cloud.row(server_id).host == "host1"
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host="host1").update(drain_wanted=True)
        assert drain_handback.hand_back("host1") == 1
        assert drain_handback.hand_back("host1") == 0
    cloud.work()
    assert cloud.row(server_id).host == "host1b"
    assert "host1 began to drain" in _notes(cloud, server_id, "reschedule")
    ends_well("create", cloud, server_id)


def test_a_boot_that_no_other_host_can_take_waits_for_the_one_that_drains(api, cloud):
    server_id = begin("create", api, cloud)
    host = cloud.row(server_id).host
    with target_cell(cloud.cell_of(server_id)):
        assert drain_handback.hand_back(host) == 1
    cloud.work()
    assert cloud.row(server_id).host == host
    assert f"waits for {host}" in _notes(cloud, server_id, "reschedule")
    ends_well("create", cloud, server_id)


def test_a_boot_that_was_tried_already_stays(api, cloud):
    """Its disk may be there."""
    server_id = begin("create", api, cloud)
    host = cloud.host_of(server_id)
    host.begin(only_step(cloud).pk)
    host.restart()
    with target_cell(host.cell):
        assert drain_handback.hand_back(host.name) == 0


def test_other_requests_wait_for_their_host(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        assert drain_handback.hand_back(host.name) == 0
    assert states(cloud, server_id) == ("active", "pausing")


def test_a_step_that_is_cut_off_says_what_becomes_of_it(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    step = host.begin(only_step(cloud).pk)
    with target_cell(host.cell):
        assert drain_handback.mark_unfinished([step.pk], "the shutdown timeout is over") == 1
        step.refresh_from_db()
    assert step.details == "the shutdown timeout is over; when the service starts again: run again"
    host.restart()
    cloud.work()
    ends_well("pause", cloud, server_id)


def test_a_host_that_starts_drained_ends_what_it_had_begun_on_its_ops_lane(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    host.begin(only_step(cloud).pk)
    host.incarnation = "a new life"
    host.report()
    with target_cell(host.cell):
        assert recovery.recover(host.worker, host.incarnation, list, dispatch.OPS) == 1
        assert Step.objects.get(state="queued").queue == dispatch.OPS
    cloud.work()
    ends_well("pause", cloud, server_id)


def test_a_host_too_old_for_the_ops_queue_is_reached_on_its_request_queue(api, cloud):
    with target_cell(cloud.cells["cell1"]):
        assert dispatch.queue_of("host1", dispatch.OPS) == "compute.host1"  # as if it never said: version 1
        Service.objects.filter(host="host1").update(version=dispatch.OPS_SINCE)
        assert dispatch.queue_of("host1", dispatch.OPS) == "compute-ops.host1"
        assert dispatch.queue_of("host1", dispatch.REQUESTS) == "compute.host1"


def test_what_a_host_left_is_not_mistaken_for_what_it_is_at_work_on(api, cloud):
    server_id = begin("pause", api, cloud)
    host = cloud.host_of(server_id)
    step = host.begin(only_step(cloud).pk)
    with target_cell(host.cell):
        assert recovery.recover(host.worker, host.incarnation, lambda: [step.pk]) == 0
        assert journal.claim(step.pk, host.worker, host.incarnation) is None
    host.finish(step)
    ends_well("pause", cloud, server_id)
    settled(cloud)


def _notes(cloud, server_id: str, name: str) -> str:
    with target_cell(cloud.cell_of(server_id)):
        return Step.objects.get(server_id=server_id, name=name).details
