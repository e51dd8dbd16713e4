"""What stories of grace periods have in common: a guest that hears nothing, who waits for it, and what the logs say."""

from __future__ import annotations

import re

import pytest

from cells.context import target_cell
from compute.models import Step
from compute.operations import registry
from compute.virt.shutdown_timer import ShutdownTimer
from tests.flow import one_host
from tests.flow.stories import Killed, act

OWN = "termination_grace_period_seconds"
HARD, SOFT = {"shutdown_type": "HARD"}, {"shutdown_type": "SOFT"}
FORCED = "forced off after N s: cut short by a request, 1 signal (acpi)"


def deaf(api, cloud, **more):
    """A server whose guest hears no signal, and its host."""
    server_id = cloud.boot(api, **more)
    host = cloud.host_of(server_id)
    host.driver.faults.shutdown(ignore=True)
    return server_id, host


def ask(api, cloud, server_id, body):
    answer = act(api, server_id, body)
    assert answer.status_code in (200, 202), answer.content
    cloud.work()


def delete(api, cloud, server_id, query=""):
    assert api.delete(f"/servers/{server_id}{query}").status_code == 204
    cloud.work()


def waits(host):
    """The names of what waits there."""
    return [f"{step.action.action}.{step.name}" for step in host.waiting()]


def nobody_waits(cloud, host):
    """Whoever waited has heard how it ended."""
    cloud.work_until(lambda: not host.waiting())


def signals(host):
    return [verb for verb, _ in host.driver.calls].count("signal_shutdown")


def outcomes(cloud, server_id):
    """What the logs of all actions after the create say, whatever the seconds."""
    said = [(row.action, row.outcome) for row in cloud.history(server_id)[1:]]
    return [(action, re.sub(r"off after \d+ s", "off after N s", outcome)) for action, outcome in said]


def is_gone(cloud, server_id):
    one_host.is_deleted(cloud, server_id)
    assert cloud.history(server_id)[-1].message is None


def killed(cloud, host, when):
    """The host is killed before, inside or after the newest step that is queued, and starts again."""
    [(_, step)] = [(cell, step) for cell, step in cloud.queued() if step.host == host.name]
    if when == "before":
        assert host.restart() == 0
        return
    if when == "inside":
        host.driver.faults.fail("power_off", error=Killed)
        with pytest.raises(Killed):
            host.run(step.pk)
    else:
        step = host.begin(step.pk)
        with target_cell(host.cell):
            action = registry.named(step.action.key)
            getattr(action, step.name)(action.context(step, host.driver))
    assert host.restart() == 1


def length(step: Step) -> float:
    """The seconds a waiting step's guest has."""
    timer = ShutdownTimer.load(step.timer)
    assert timer is not None
    return round(timer.deadline - timer.begun, 3)
