"""`manage.py operations`: what does not go on is named, tried again now, or given up, and nothing is stuck after it."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from cells.context import target_cell
from compute.models import Instance, InstanceAction, Service, Step
from compute.operations import repair
from compute.virt.base import HypervisorUnavailable, PowerState
from tests.cells.conftest import _no_memories, lost, run  # noqa: F401  fixtures
from tests.flow import stories, two_hosts
from tests.flow.stories import act
from tests.flow.two_hosts import LIVE, claimed, homes

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def operations(run):  # noqa: F811
    """`manage.py operations …`."""

    def words(*said):
        return run("operations", *said)

    def listed(*said):
        ended = words(*said, "--json")
        return json.loads(ended.out)["operations"]

    words.listed = listed
    return words


@pytest.fixture
def behind(admin, cloud):
    """A live migration that has arrived; only its source has to be cleaned, and the hypervisor there is away."""
    server_id = two_hosts.booted(admin, cloud)
    cloud.hosts["host1"].driver.faults.fail("cleanup_source", times=-1, error=HypervisorUnavailable)
    assert act(admin, server_id, LIVE).status_code == 202
    cloud.work()
    assert two_hosts.waiting(cloud).name == "cleanup_source"
    return server_id


def test_a_step_that_waits_for_its_hypervisor_is_seen_with_what_it_waits_for(cloud, behind, operations):
    (seen,) = operations.listed()
    assert (seen["server"], seen["operation"], seen["name"]) == (behind, "live-migration", "cleanup_source")
    assert (seen["host"], seen["service"], seen["state"]) == ("host1", "up", "queued")
    assert seen["details"].startswith("waits for the hypervisor of host host1: ")
    assert seen["next_try"]
    assert operations.listed("--stuck") == []  # it is young
    assert [one["step"] for one in operations.listed("--stuck", "0")] == [seen["step"]]

    table = operations("--stuck", "0").out
    heading, line = table.splitlines()
    assert heading.split()[:3] == ["STEP", "SERVER", "OPERATION"]
    assert {seen["step"], behind, "cleanup_source", "host1", "queued"} <= set(line.split())
    assert line.endswith(seen["details"])


def test_a_retry_tries_now_and_ends_it_when_the_hypervisor_is_back(cloud, behind, operations):
    (seen,) = operations.listed()
    two_hosts.waiting(cloud)
    cloud.work()
    assert operations.listed()[0]["tries"] == seen["tries"], "not before its time"
    cloud.hosts["host1"].driver.faults.clear()

    ended = operations("retry", seen["step"])

    assert ended.code == 0
    assert ended.out == f"Step cleanup_source of server {behind} is tried again now by host host1.\n"
    cloud.work()
    assert operations.listed() == []
    assert (stories.states(cloud, behind), homes(cloud, behind)) == (("active", None), ["host3"])
    stories.settled(cloud)
    again = operations("retry", seen["step"])
    assert (again.code, "has ended" in again.err) == (1, True)


def test_what_giving_up_would_do_is_said_first_and_changes_nothing(cloud, behind, operations):
    (seen,) = operations.listed()
    before = rows(cloud)

    ended = operations("give-up", seen["step"], "--reason", "its disk is gone")

    assert ended.code == 1
    assert "live-migration ends with an error. The server is ACTIVE (no task); its recorded host is host3." in ended.out
    assert "Only this step can clean up on host host1" in ended.out
    assert "Nothing was changed." in ended.err
    assert rows(cloud) == before


def rows(cloud):
    with target_cell(cloud.cells["cell1"]):
        return [list(model.objects.order_by("pk").values()) for model in (Step, InstanceAction, Instance)]


def test_a_step_that_is_given_up_ends_its_action_with_the_reason_and_the_server_is_free(
    admin, cloud, behind, operations
):
    (seen,) = operations.listed()
    ended = operations("give-up", seen["step"], "--reason", "its disk is gone", "--yes")
    assert ended.code == 0
    assert "live-migration ends with an error" in ended.out
    assert operations.listed() == []
    done = stories.last_action(admin, behind)
    assert (done["action"], done["message"]) == ("live-migration", "Error")
    assert "its disk is gone" in done["events"][-1]["details"]
    assert (stories.states(cloud, behind), claimed(cloud, behind)) == (("active", None), {"host3"})
    assert act(admin, behind, {"pause": None}).status_code == 202
    cloud.work()
    assert stories.states(cloud, behind) == ("paused", None)


def test_a_move_that_is_given_up_half_way_is_undone(admin, cloud, operations):
    server_id = two_hosts.booted(admin, cloud)
    cloud.hosts["host3"].driver.faults.fail("finish_migration", times=-1, error=HypervisorUnavailable)
    assert act(admin, server_id, {"migrate": None}).status_code == 202
    cloud.work()
    (seen,) = operations.listed()
    assert seen["name"] == "finish_migration"
    would = operations("give-up", seen["step"], "--reason", "host3 burns")
    next_step = "next is step cleanup_destination on host host3, which undoes earlier steps."
    assert f"Step finish_migration fails; {next_step}" in would.out

    assert operations("give-up", seen["step"], "--reason", "host3 burns", "--yes").code == 0

    cloud.hosts["host3"].driver.faults.clear()
    cloud.work()
    assert (stories.states(cloud, server_id), homes(cloud, server_id)) == (("active", None), ["host1"])
    assert "host3 burns" in cloud.row(server_id).fault["message"]
    assert claimed(cloud, server_id) == {"host1"}
    stories.settled(cloud)


def test_a_waiting_step_that_is_tried_again_looks_once_more_and_waits_on(api, cloud, operations):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        (seen,) = operations.listed()
        assert (seen["state"], operations.listed("--stuck", "0")) == ("waiting", [])  # it has a deadline, and keeps it
        assert operations("retry", seen["step"]).code == 0
        cloud.work()
        (still,) = operations.listed()
        assert (still["state"], still["deadline"]) == ("waiting", seen["deadline"])
    with target_cell(host.cell):
        assert host.driver.power_state(server_id) is PowerState.RUNNING


def test_a_step_that_runs_is_not_given_up_while_its_process_is_there(admin, cloud, operations):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"pause": None})
    host = cloud.hosts["host1"]
    step = host.begin(two_hosts.waiting(cloud).pk)
    (seen,) = operations.listed()
    for words in (("retry", seen["step"]), ("give-up", seen["step"], "--reason", "r", "--yes")):
        refused = operations(*words)
        assert (refused.code, "runs on nova-compute@host1" in refused.err) == (1, True)
    with target_cell(host.cell):  # it is not heard of any more
        Service.objects.filter(host="host1").update(last_seen_up=timezone.now() - timedelta(hours=1))

    assert operations("give-up", seen["step"], "--reason", "the machine is dead", "--yes").code == 0

    assert stories.states(cloud, server_id) == ("active", None)
    assert "the machine is dead" in cloud.row(server_id).fault["message"]
    host.finish(step)  # it was only slow: the guest is paused, and the record is not its to write
    assert stories.states(cloud, server_id) == ("active", None)
    assert cloud.history(server_id)[-1].message == "Error"


def test_a_step_that_is_claimed_between_the_look_and_the_word_is_left_to_its_worker(admin, cloud):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"pause": None})
    host = cloud.hosts["host1"]
    with target_cell(host.cell):
        read = repair.find(two_hosts.waiting(cloud).pk)
    claimed_step = host.begin(read.pk)
    with target_cell(host.cell):
        with pytest.raises(repair.RepairRefused, match="has changed meanwhile"):
            repair.give_up(read, by="ann", reason="r")
        with pytest.raises(repair.RepairRefused, match="runs already"):
            repair.retry(read)
    host.finish(claimed_step)
    assert stories.states(cloud, server_id) == ("paused", None)
    stories.settled(cloud)


def test_a_row_whose_recovery_fails_is_stuck_at_once_and_can_be_given_up(admin, cloud, operations):
    """The server's row is missing, as after a restore of an older backup of the cell."""
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"pause": None})
    host = cloud.hosts["host1"]
    host.begin(two_hosts.waiting(cloud).pk)
    with target_cell(host.cell):
        Step.objects.update(attempts=99)  # so that recovery ends it
        Instance.objects.filter(uuid=server_id).delete()
    host.restart()
    (seen,) = operations.listed("--stuck")
    assert seen["details"].startswith("recovery failed")

    ended = operations("give-up", seen["step"], "--reason", "restored", "--yes")

    assert (ended.code, "has no row in this cell" in ended.out) == (0, True)
    assert operations.listed() == []
    assert host.restart() == 0
    with target_cell(host.cell):
        assert not InstanceAction.objects.filter(server_id=server_id, finished_at__isnull=True).exists()


def test_what_a_newer_version_wrote_is_not_given_up_by_this_one(admin, cloud, operations):
    server_id = two_hosts.booted(admin, cloud)
    act(admin, server_id, {"pause": None})
    with target_cell(cloud.cells["cell1"]):
        InstanceAction.objects.filter(server_id=server_id, action="pause").update(key="TimeTravel")
    (seen,) = operations.listed()
    refused = operations("give-up", seen["step"], "--reason", "r", "--yes")
    assert (refused.code, "newer version" in refused.err) == (1, True)


def test_pages_follow_each_other_over_all_cells_and_miss_nothing(cells, operations):
    now = timezone.now()
    made = set()
    for number, name in enumerate(["cell0", "cell1", "cell2"] * 5):
        with target_cell(cells[name]):
            at = now - timedelta(seconds=number // 6)  # some at the same moment
            action = InstanceAction.objects.create(
                server_id=str(uuid4()), action="stop", key="Stop", request_id="req-1", user_id="u", project_id="p",
                started_at=at, updated_at=at,
            )  # fmt: skip
            Step.objects.create(
                action=action, server_id=action.server_id, name="power_off", event="e", host="h", queue="requests",
                queued_at=at,
            )  # fmt: skip
            made.add(action.server_id)
    found, marker = [], ""
    while True:
        page = json.loads(operations("--limit", "4", "--json", *(["--marker", marker] if marker else [])).out)
        found += page["operations"]
        assert len(page["operations"]) <= 4
        if not (marker := page["next_marker"]):
            break
    assert [one["since"] for one in found] == sorted(one["since"] for one in found)
    assert (len(found), {one["server"] for one in found}) == (15, made)
    (one,) = operations.listed("--server", found[7]["server"])
    assert one["step"] == found[7]["step"]
    assert {one["cell"] for one in operations.listed("--cell", "cell2")} == {"cell2"}


def test_a_cell_that_is_down_is_named_and_the_others_are_listed(cloud, behind, lost, operations):  # noqa: F811
    ended = operations()
    assert (ended.code, behind in ended.out) == (3, True)
    assert "lost does not answer" in ended.err
    assert operations("retry", "lost:1").code == 3


@pytest.mark.parametrize(("words", "said"), [
    (("retry", "x"), "names no step"), (("retry", "cell1:1x"), "names no step"), (("retry", "nowhere:1"), "no cell"),
    (("retry", "cell1:999999"), "No such step"), (("--marker", "cell1:999999"), "no step"),
    (("--cell", "nowhere"), "no cell"),
])  # fmt: skip
def test_wrong_words_are_sentences(cells, operations, words, said):
    ended = operations(*words)
    assert (ended.code, said in ended.err) == (1, True), ended.err


def test_nothing_open_is_said(cells, operations):
    assert operations().out == "No step is open.\n"
