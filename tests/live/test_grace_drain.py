"""A host that drains while it waits for guests: it stays for them, leaves with the last one, and forgets none."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.machine import fair

pytestmark = pytest.mark.live
OWN = "termination_grace_period_seconds"
SECONDS = 6  # a guest takes
OFF = "powered off by guest"
FORCED = "powered off by force"


@pytest.fixture(scope="module")
def stage(fake_cloud: Cloud) -> Stage:
    """The simulated cloud of all live tests."""
    return Stage(fake_cloud)


def stopping_servers(stage: Stage, count: int, grace: int, **faults: str) -> list[str]:
    """Servers of host1 that wait for their guests."""
    ids = [stage.order(stage.image(**faults), "host1", f"graced-{n}", metadata={OWN: str(grace)}) for n in range(count)]
    for uuid in ids:
        stage.wait(uuid, "ACTIVE")
        assert stage.ask(uuid, {"os-stop": None}) == 202
    for uuid in ids:
        where = f"server_id = '{uuid}' AND state = 'waiting'"
        eventually("it waits", lambda where=where: stage.steps("cell1", "id", where), 20, 0.02)
    return ids


def timer(stage: Stage, uuid: str) -> dict[str, Any]:
    """As its stop has it."""
    [(text,)] = stage.steps("cell1", "timer", f"server_id = '{uuid}' AND name = 'power_off'")
    return dict(json.loads(text))


def lines(stage: Stage, event: str, since: float) -> list[dict[str, Any]]:
    """What host1 logged."""
    found = [json.loads(line) for line in stage.cloud.log("host1").splitlines() if f'"event": "{event}"' in line]
    after = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since))
    return [line for line in found if line["timestamp"] >= after]


def test_it_leaves_within_a_second_after_the_last_guest(stage):
    ids = stopping_servers(stage, 3, 60, shutdown_delay=str(SECONDS))
    stopping = stage.stop("host1")
    try:
        ended = stopping.ended(SECONDS + 30)
        last = max(at for uuid in ids for at, what in stage.timed_effects(uuid) if what == OFF)
        assert 0 < ended - last < fair(1)
        waits = lines(stage, "drain.waiting", stopping.told_at)
        assert {line["server"] for line in waits} >= set(ids)
        assert all("forced off at" in line["waits_for"] for line in waits if line["server"] in ids)
        assert [line["exits"] for line in lines(stage, "drain.finished", stopping.told_at)] == [True]
        for uuid in ids:
            assert stage.show(uuid)["status"] == "SHUTOFF"
    finally:
        stage.cloud.up()
        stage.empty()


def test_a_drain_that_has_no_time_says_whom_it_leaves_and_the_next_life_goes_on(stage):
    stage.restart_with("host1", GRACEFUL_SHUTDOWN_TIMEOUT="3")
    try:
        [deaf] = stopping_servers(stage, 1, 25, shutdown_ignore="1")
        asked = timer(stage, deaf)
        stopping = stage.stop("host1")
        assert 2 <= stopping.ended(20) - stopping.told_at <= 3 + fair(1)
        [left] = [line for line in lines(stage, "drain.unfinished", stopping.told_at) if line["server"] == deaf]
        assert "forced off at" in left["waits_for"]
        [gave_up] = lines(stage, "drain.aborted", stopping.told_at)
        assert gave_up["unfinished"] == 1
        assert stage.show(deaf)["OS-EXT-STS:task_state"] == "powering-off"
    finally:
        stage.cloud.settings["STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT"] = "180"
        stage.cloud.up()
    stage.wait(deaf, "SHUTOFF")
    ended = timer(stage, deaf)
    assert (ended["begun"], ended["deadline"], ended["how"]) == (asked["begun"], asked["deadline"], "forced")
    [off] = [at for at, what in stage.timed_effects(deaf) if what == FORCED]
    assert -2 < off - max(asked["deadline"], stopping.told_at) < fair(2)
    stage.empty()
