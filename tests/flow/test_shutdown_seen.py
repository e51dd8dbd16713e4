"""What a user sees of a guest on its way off, and what is told of it afterwards."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from cells.context import target_cell
from compute.models import Instance, Step
from compute.operations import journal
from compute.shutdown import status
from compute.virt.shutdown_timer import ShutdownTimer
from tests.api.queries import counted
from tests.flow import stories
from tests.flow.stories import act

SHOWN = {"begun", "deadline", "seconds_left", "signals", "by", "outcome"}


@pytest.fixture
def waiting(api, cloud, settings):
    """A server whose stop waits for a guest that never obeys."""
    settings.SHUTDOWN_TIMEOUT = 600
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work_until(lambda: [step for step in host.waiting() if step.timer and step.timer["signals"]])
        yield server_id
        host.driver.begin_shutdown(server_id, 0, 10)
        cloud.work_until(lambda: not host.waiting())
    stories.settled(cloud)


def show(api, server_id, version="2.96"):
    return api.get(f"/servers/{server_id}", version=version).json()["server"]


def event(api, server_id, **options):
    return stories.last_action(api, server_id, **options)["events"][0]


def moment(text):
    return datetime.fromisoformat(text)


def test_a_server_that_shuts_down_shows_its_deadline_and_how_far_it_is(api, reader, waiting):
    for server in (show(api, waiting), show(reader, waiting), show(api, waiting, "2.1")):
        assert (server["status"], server["OS-EXT-STS:task_state"]) == ("ACTIVE", "powering-off")
        seen = server["shutdown"]
        assert seen.keys() == SHOWN
        assert moment(seen["deadline"]) - moment(seen["begun"]) == timedelta(seconds=600)
        assert 500 < seen["seconds_left"] <= 600
        assert (seen["signals"], seen["by"], seen["outcome"]) == (1, "acpi", "")
        assert 0 <= server["progress"] < 20


def test_lists_and_idle_servers_know_nothing_of_it(api, cloud, waiting):
    for listed in api.get("/servers/detail").json()["servers"]:
        assert "shutdown" not in listed
    assert "shutdown" not in show(api, cloud.boot(api, "idle"))


def test_only_a_busy_server_costs_a_question_more(api, cloud, waiting):
    def cost(server_id):
        with counted() as seen:
            show(api, server_id)
        return sum(map(len, seen.values()))

    idle = cloud.boot(api, "idle")
    show(api, idle)
    assert cost(waiting) == cost(idle) + 1


def test_a_step_that_waits_is_begun_and_not_ended(api, admin, waiting):
    mine, admins = event(api, waiting), event(admin, waiting)
    assert (mine["result"], mine["finish_time"]) == (None, None)
    assert mine["start_time"] is not None
    assert mine["shutdown"] == admins["shutdown"] | {"seconds_left": mine["shutdown"]["seconds_left"]}
    assert "details" not in mine  # as Nova's policy has it
    assert admins["details"].startswith("1 signal (acpi); forced off at 20")


@pytest.mark.parametrize(("begun", "ends", "progress"), [(300, 300, 50), (600, 0, 100), (3600, -3000, 100)])
def test_progress_is_the_share_of_the_grace_that_has_passed(api, cloud, begun, ends, progress):
    """Also where its host is away, and nobody keeps the deadline."""
    server_id, now = cloud.boot(api), time.time()
    act(api, server_id, {"os-stop": None})
    with target_cell(cloud.cell_of(server_id)):
        Step.objects.filter(server_id=server_id, state="queued").update(
            state="waiting", timer=ShutdownTimer(now - begun, now + ends, 10, signals=3).facts
        )
    server = show(api, server_id)
    assert server["progress"] == progress
    assert server["shutdown"]["seconds_left"] == pytest.approx(max(0, ends), abs=60)
    assert server["shutdown"]["outcome"] == ""


def test_how_it_went_is_told_to_the_owner_and_the_admin(api, admin, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(delay=0.4)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work_until(lambda: not host.waiting())
    server = show(api, server_id)
    assert server["status"] == "SHUTOFF"
    assert "shutdown" not in server
    mine, admins = event(api, server_id), event(admin, server_id)
    assert admins["details"] == mine["shutdown"]["outcome"]
    assert mine["shutdown"]["outcome"].startswith("guest shut down in 0.")
    assert mine["shutdown"]["outcome"].endswith(" s, 1 signal (acpi)")
    assert (mine["result"], mine["shutdown"]["seconds_left"]) == ("Success", 0.0)
    assert moment(mine["finish_time"]) - moment(mine["start_time"]) >= timedelta(seconds=0.4)  # the wait is its own
    newest = api.get(f"/servers/{server_id}/os-instance-actions").json()["instanceActions"][0]["request_id"]
    path = f"/servers/{server_id}/os-instance-actions/{newest}"
    assert "shutdown" not in api.get(path, version="2.83").json()["instanceAction"]["events"][0]


def test_it_is_told_also_where_a_process_waits_for_the_guest_itself(api, admin, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"os-stop": None})
    cloud.work()
    assert event(api, server_id)["shutdown"]["outcome"] == event(admin, server_id)["details"]


def test_a_soft_reboot_that_falls_back_to_hard_says_so(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT, settings.SHUTDOWN_RETRY_INTERVAL = 1, 1
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"reboot": {"type": "SOFT"}})
        cloud.work()
        assert show(api, server_id)["status"] == "REBOOT"
        assert show(api, server_id)["shutdown"]["outcome"] == ""
        cloud.work_until(lambda: not host.waiting())
    assert stories.states(cloud, server_id) == ("active", None)
    said = "fell back to a hard reboot after 1 s, 1 signal (acpi)"
    assert event(api, server_id)["shutdown"]["outcome"] == said
    assert event(admin, server_id)["details"] == said


def test_what_was_preempted_says_how_its_clock_ended(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT = 600
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work()
        api.delete(f"/servers/{server_id}")
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(server_id)))
    path = f"/servers/{server_id}/os-instance-actions"
    stop = next(one for one in api.get(path).json()["instanceActions"] if one["action"] == "stop")
    shown = admin.get(f"{path}/{stop['request_id']}").json()["instanceAction"]
    assert (shown["message"], shown["events"][0]["result"]) == ("Error", "Error")
    assert shown["events"][0]["shutdown"]["outcome"] != ""
    assert shown["events"][0]["details"] == f"preempted: {shown['events'][0]['shutdown']['outcome']}"


def test_who_joins_sees_the_same_clock_and_the_same_end(api, admin, cloud, settings):
    settings.SHUTDOWN_TIMEOUT = 2
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    with host.with_watcher():
        act(api, server_id, {"os-stop": None})
        cloud.work_until(lambda: host.waiting())
        first = show(api, server_id)["shutdown"]
        assert api.delete(f"/servers/{server_id}?shutdown_timeout=500").status_code == 204
        cloud.work_until(lambda: len(host.waiting()) == 2)
        server = show(api, server_id)
        assert server["OS-EXT-STS:task_state"] == "deleting"
        assert {name: server["shutdown"][name] for name in ("begun", "deadline")} == {
            name: first[name] for name in ("begun", "deadline")
        }
        cloud.work_until(lambda: all(action.finished_at for action in cloud.history(server_id)))
    path = f"/servers/{server_id}/os-instance-actions"
    ids = [one["request_id"] for one in api.get(path).json()["instanceActions"]][:2]
    ends = [api.get(f"{path}/{one}").json()["instanceAction"]["events"][0]["shutdown"]["outcome"] for one in ids]
    assert ends == ["forced off after 2 s, 1 signal (acpi)"] * 2


@pytest.mark.parametrize(
    ("state", "words"),
    [("done", "guest was off after a restart"), ("failed", "given up"), ("cancelled", "given up"), ("running", "")],
)
def test_a_clock_whose_end_nobody_saw_does_not_run_for_ever(api, cloud, state, words):
    server_id = cloud.boot(api)
    with target_cell(cloud.cell_of(server_id)):
        action = journal.open_action(Instance.objects.get(uuid=server_id), name="stop", key="Stop", request_id="r",
                                     user_id="u", project_id="p")  # fmt: skip
        step = journal.open_step(action, name="power_off", event="e", host="host1", queue="requests")
        step.state, step.timer = state, ShutdownTimer.start(time.time(), 60, 10).facts
        seen = status.as_json(step)
        step.timer = None
        assert status.as_json(step) is None
        Step.objects.all().delete()
        type(action).objects.filter(pk=action.pk).delete()
    assert seen["outcome"] == words
    assert (seen["seconds_left"] > 0) == (state == "running")
