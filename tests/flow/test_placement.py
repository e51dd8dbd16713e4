"""From the accepted request to the cell: schedulers that die, race or sleep, and deletes at every moment."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import CELL0, BuildRequest, InstanceMapping, RequestSpec
from compute.builds import build, leases
from compute.models import Allocation, ComputeNode, Instance
from compute.placement import quota
from compute.scheduler import select
from tests.conftest import PROJECT
from tests.flow import stories
from tests.flow.stories import at_once

NOWHERE = "sqlite:////proc/nowhere/x.sqlite3"
MOMENTS = ["asked for", "leased", "cell named", "placed", "built"]


@pytest.fixture
def asked(api, cloud):
    """A server nobody has looked at yet."""
    return api.send("post", "/servers", cloud.body()).json()["server"]["id"]


def carry(cloud, server_id, moment):
    """A scheduler that goes so far and dies there; what it held in its hands."""
    if moment == "asked for":
        return None
    request = leases.take(server_id)
    mapping = InstanceMapping.objects.get(pk=server_id)
    if moment != "leased":
        build._name_cell(request, mapping, cloud.cells["cell1"])
    if moment in ("placed", "built"):
        assert build_in(cloud, "cell1", request, mapping)
    if moment == "built":
        for _, step in cloud.queued():
            cloud.hosts[step.host].run(step.pk)
    return request


def build_in(cloud, name, request, mapping):
    """What a scheduler does once it has chosen the first host of a cell."""
    cell = cloud.cells[name]
    with target_cell(cell):
        host = select.read_hosts(cell.id)[0]
    spec = RequestSpec.objects.get(pk=request.pk)
    wanted = select.Requirements(spec.server_id, spec.vcpus, spec.memory_mb, spec.disk_gb)
    return build._build_in(cell, host, wanted, request, mapping)


def lease_ends(server_id):
    """The scheduler's half minute is over."""
    BuildRequest.objects.filter(pk=server_id).update(lease_until=timezone.now() - timedelta(seconds=1))


def rows(cloud, server_id):
    """In which cells the server has a row."""
    found = []
    for name, cell in cloud.cells.items():
        with target_cell(cell):
            found += [name] * Instance.objects.filter(uuid=server_id).count()
    return found


def nothing_is_left(cloud, server_id):
    """No claim, no quota, no request."""
    assert not BuildRequest.objects.filter(pk=server_id).exists()
    assert quota.usage(PROJECT) == quota.Usage()
    assert set(cloud.used().values()) == {(0, 0)}
    stories.settled(cloud)


# -- schedulers that die


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_scheduler_that_dies_is_followed_by_one_that_finishes(moment, api, cloud, asked):
    carry(cloud, asked, moment)
    if moment != "asked for":
        assert not build.place(asked)  # the lease holds
        lease_ends(asked)
    cloud.work()
    assert len(rows(cloud, asked)) == 1
    assert stories.states(cloud, asked) == ("active", None)
    assert InstanceMapping.objects.get(pk=asked).cell == cloud.cell_of(asked)
    assert not BuildRequest.objects.exists()
    assert sorted(cloud.used().values()) == [(0, 0), (1, 512)]
    assert [action.action for action in cloud.history(asked)] == ["create"]
    stories.settled(cloud)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_delete_is_carried_out_at_every_moment_of_a_boot(moment, api, cloud, asked):
    carry(cloud, asked, moment)
    assert api.delete(f"/servers/{asked}").status_code == 204
    lease_ends(asked)
    cloud.work()
    assert api.get(f"/servers/{asked}").status_code == 404
    nothing_is_left(cloud, asked)


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_a_delete_is_carried_out_by_the_scheduler_that_is_at_work(moment, api, cloud, asked):
    request = carry(cloud, asked, moment)
    assert api.delete(f"/servers/{asked}").status_code == 204
    mapping = InstanceMapping.objects.get(pk=asked)
    if moment in ("leased", "cell named"):
        assert build_in(cloud, "cell1", request, mapping)
    assert build._conclude(request, mapping)
    cloud.work()
    nothing_is_left(cloud, asked)


def test_a_request_deleted_before_anybody_looked_leaves_nothing(api, cloud, asked):
    assert api.delete(f"/servers/{asked}").status_code == 204
    assert not BuildRequest.objects.exists()
    assert not InstanceMapping.objects.exists()
    assert not RequestSpec.objects.exists()
    assert not build.place(asked)  # its message comes all the same
    nothing_is_left(cloud, asked)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_server_is_shown_at_every_moment_of_its_boot(moment, api, cloud, asked):
    carry(cloud, asked, moment)
    status = "ACTIVE" if moment == "built" else "BUILD"
    assert api.get(f"/servers/{asked}").json()["server"]["status"] == status
    assert [(s["id"], s["status"]) for s in api.get("/servers/detail").json()["servers"]] == [(asked, status)]


def test_a_request_whose_message_was_lost_is_sent_again(cloud, asked):
    assert leases.relay() == 0
    BuildRequest.objects.update(sent_at=timezone.now() - timedelta(seconds=16))
    assert leases.relay() == 1
    assert leases.relay() == 0
    BuildRequest.objects.update(sent_at=timezone.now() - timedelta(hours=1))
    leases.take(asked)
    assert leases.relay() == 0  # somebody is at work on it
    lease_ends(asked)
    assert leases.relay() == 1


# -- schedulers that race or sleep


def test_two_schedulers_that_get_one_request_at_once_build_one_server(cloud, asked):
    assert sorted(at_once(4, lambda _: build.place(asked))) == [False, False, False, True]
    cloud.work()
    assert len(rows(cloud, asked)) == 1
    stories.settled(cloud)


def test_a_scheduler_that_slept_too_long_writes_nothing(cloud, asked):
    slow = carry(cloud, asked, "leased")
    mapping = InstanceMapping.objects.get(pk=asked)
    lease_ends(asked)
    other = leases.take(asked)
    assert build_in(cloud, "cell2", other, InstanceMapping.objects.get(pk=asked))

    with pytest.raises(leases.LeaseLost):
        build_in(cloud, "cell1", slow, mapping)

    assert rows(cloud, asked) == ["cell2"]
    assert InstanceMapping.objects.get(pk=asked).cell == cloud.cells["cell2"]
    assert cloud.used() == {"host1": (0, 0), "host2": (1, 512)}


def test_a_scheduler_that_slept_through_the_whole_boot_writes_nothing(cloud, asked):
    slow = carry(cloud, asked, "leased")
    mapping = InstanceMapping.objects.get(pk=asked)
    lease_ends(asked)
    cloud.work()
    there = rows(cloud, asked)
    for late in (lambda: build_in(cloud, "cell1", slow, mapping),
                 lambda: build._record_in_cell0(slow, mapping, build.NoValidHost("none"))):  # fmt: skip
        with pytest.raises(leases.LeaseLost):
            late()
        assert rows(cloud, asked) == there
        assert InstanceMapping.objects.get(pk=asked).cell == cloud.cell_of(asked)
    assert not build._conclude(slow, mapping)
    stories.settled(cloud)


def test_a_scheduler_that_loses_its_lease_at_the_last_moment_takes_its_claim_back(cloud, asked, monkeypatch):
    slow = carry(cloud, asked, "cell named")
    mapping = InstanceMapping.objects.select_related("cell").get(pk=asked)
    named = build._name_cell  # between its naming the cell and its commit there, another one takes over
    monkeypatch.setattr(build, "_name_cell", lambda *a: (named(*a), lease_ends(asked), leases.take(asked)))
    with pytest.raises(leases.LeaseLost):
        build_in(cloud, "cell1", slow, mapping)
    monkeypatch.undo()
    with target_cell(cloud.cells["cell1"]):
        assert not Instance.objects.exists()
        assert not Allocation.objects.exists()
    assert cloud.used()["host1"] == (0, 0)
    lease_ends(asked)
    cloud.work()
    assert len(rows(cloud, asked)) == 1
    stories.settled(cloud)


def test_a_row_that_is_just_being_written_is_not_taken_for_missing(cloud, asked, settings):
    settings.CELL_TIMEOUT = 0.3
    request = carry(cloud, asked, "cell named")
    with target_cell(cloud.cells["cell1"]) as alias, transaction.atomic(using=alias):
        build._write_row(request, host="host1", task_state="spawning")
        lease_ends(asked)
        assert not build.place(asked)  # it cannot know, so it waits
        transaction.set_rollback(True, using=alias)
    assert InstanceMapping.objects.get(pk=asked).cell == cloud.cells["cell1"]
    circuit_breaker.record_recovery(cloud.cells["cell1"].id)
    settings.CELL_TIMEOUT = 10
    lease_ends(asked)
    cloud.work()
    assert len(rows(cloud, asked)) == 1
    assert stories.states(cloud, asked) == ("active", None)
    stories.settled(cloud)


def test_a_host_that_was_filled_meanwhile_is_followed_by_the_next(cloud):
    largest = cloud.add_host("largest", "cell1", memory_mb=1 << 20)
    with target_cell(largest.cell):
        seen = select.read_hosts(largest.cell.id)
        ComputeNode.objects.filter(host="largest").update(memory_mb_used=1 << 20)
        assert select.claim_best(lambda: (select.Requirements("a", 1, 512, 1), seen)).host == "host1"


# -- cells that are down


def test_a_request_whose_cell_is_down_waits_for_it(api, cloud, asked):
    carry(cloud, asked, "cell named")
    lease_ends(asked)
    circuit_breaker.record_failure(cloud.cells["cell1"].id, "ordered")
    assert not build.place(asked)
    assert rows(cloud, asked) == []
    assert api.get(f"/servers/{asked}").json()["server"]["status"] == "BUILD"
    circuit_breaker.record_recovery(cloud.cells["cell1"].id)
    lease_ends(asked)
    cloud.work()
    assert len(rows(cloud, asked)) == 1
    stories.settled(cloud)


def test_a_delete_that_waits_for_a_cell_that_is_down_is_carried_out_when_it_is_back(api, cloud, asked):
    carry(cloud, asked, "placed")
    circuit_breaker.record_failure(cloud.cells["cell1"].id, "ordered")
    assert api.delete(f"/servers/{asked}").status_code == 204
    lease_ends(asked)
    assert not build.place(asked)
    assert quota.usage(PROJECT) == quota.Usage()
    circuit_breaker.record_recovery(cloud.cells["cell1"].id)
    lease_ends(asked)
    cloud.work()
    nothing_is_left(cloud, asked)


def test_a_cell_that_is_down_gets_no_servers(api, cloud, asked):
    circuit_breaker.record_failure(cloud.cells["cell1"].id, "ordered")
    cloud.schedule()
    circuit_breaker.record_recovery(cloud.cells["cell1"].id)
    assert rows(cloud, asked) == ["cell2"]


def test_a_server_without_a_place_dies_once(api, cloud, asked):
    request = leases.take(asked)
    mapping = InstanceMapping.objects.get(pk=asked)
    build._record_in_cell0(request, mapping, build.NoValidHost("No valid host was found."))
    lease_ends(asked)  # it died before it removed the request
    cloud.work()
    assert rows(cloud, asked) == ["cell0"]
    assert cloud.cell_of(asked).id == CELL0
    assert len(cloud.history(asked)) == 1
    assert api.delete(f"/servers/{asked}").status_code == 204
    nothing_is_left(cloud, asked)


def test_a_server_without_a_place_can_be_deleted_before_its_request_is_gone(api, cloud, asked):
    request = leases.take(asked)
    mapping = InstanceMapping.objects.get(pk=asked)
    build._record_in_cell0(request, mapping, build.NoValidHost("No valid host was found."))
    assert api.delete(f"/servers/{asked}").status_code == 204
    lease_ends(asked)
    cloud.work()
    assert cloud.row(asked).deleted
    nothing_is_left(cloud, asked)


def test_a_restarted_scheduler_does_not_wait_for_the_leases_of_its_last_life(api, cloud, settings):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    assert leases.take(server_id) is not None  # and here the scheduler was killed
    assert not build.place(server_id)

    assert leases.free_leases_of("another-scheduler") == 0
    assert leases.free_leases_of(settings.HOST) == 1
    assert leases.relay() == 1

    cloud.work()
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ACTIVE"


def test_a_boot_asked_for_while_all_cells_are_down_waits_for_one_of_them(api, cloud, asked):
    for name in ("cell1", "cell2"):
        circuit_breaker.record_failure(cloud.cells[name].id, "ordered")
    assert not build.place(asked)
    assert api.get(f"/servers/{asked}").json()["server"]["status"] == "BUILD"
    assert rows(cloud, asked) == []
    assert leases.relay() == 0  # in vain
    circuit_breaker.record_recovery(cloud.cells["cell2"].id)
    assert leases.relay() == 1  # at once
    cloud.work()
    assert stories.states(cloud, asked) == ("active", None)
    assert rows(cloud, asked) == ["cell2"]


def test_a_boot_that_waits_for_any_cell_can_be_deleted(api, cloud, asked):
    for name in ("cell1", "cell2"):
        circuit_breaker.record_failure(cloud.cells[name].id, "ordered")
    build.place(asked)
    assert api.delete(f"/servers/{asked}").status_code == 204
    nothing_is_left(cloud, asked)


def test_who_finds_no_host_is_told_that_some_could_not_be_asked(api, cloud):
    circuit_breaker.record_failure(cloud.cells["cell2"].id, "ordered")
    for host in cloud.hosts.values():
        with target_cell(host.cell):
            ComputeNode.objects.update(memory_mb_used=1 << 20)
    server = api.get(f"/servers/{cloud.boot(api)}").json()["server"]
    assert server["status"] == "ERROR"
    assert server["fault"]["message"] == (
        "No valid host was found. No host passed the filter for: memory. "
        "Hosts whose cell does not answer now could not be asked."
    )


def test_a_cell_that_goes_down_in_the_middle_of_a_placement_is_waited_for(api, cloud, asked, monkeypatch):
    """It may have the row all the same: only the cell itself can say."""
    with monkeypatch.context() as patch:
        patch.setattr(build.create.Create, "record", cut_off)
        assert not build.place(asked)
    named = InstanceMapping.objects.get(pk=asked).cell
    circuit_breaker.record_failure(named.id, "ordered")
    assert not build.place(asked)
    assert leases.relay() == 0
    assert InstanceMapping.objects.get(pk=asked).cell == named
    circuit_breaker.record_recovery(named.id)
    assert leases.relay() == 1
    cloud.work()
    assert stories.states(cloud, asked) == ("active", None)
    assert len(rows(cloud, asked)) == 1
    stories.settled(cloud)


def test_a_request_nobody_can_take_waits_for_cell0(api, cloud, asked):
    for host in cloud.hosts.values():
        with target_cell(host.cell):
            ComputeNode.objects.update(memory_mb_used=1 << 20)
    cell0 = cloud.cells["cell0"]
    there, cell0.database_url = cell0.database_url, NOWHERE
    cell0.save()
    assert not build.place(asked)
    assert not build.place(asked)
    assert circuit_breaker.known_down(cell0.id)
    assert api.get(f"/servers/{asked}").json()["server"]["status"] == "BUILD"
    cell0.database_url = there
    cell0.save()
    circuit_breaker.record_recovery(cell0.id)
    cloud.work()
    assert api.get(f"/servers/{asked}").json()["server"]["status"] == "ERROR"
    assert rows(cloud, asked) == ["cell0"]


def cut_off(*_, **__):
    raise OperationalError("server closed the connection unexpectedly")
