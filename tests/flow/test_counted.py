"""What is counted while servers live: each end of a step, each message sent again, each step led out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from prometheus_client import REGISTRY

from cells.context import target_cell
from compute.models import Step
from compute.operations import recovery
from compute.virt.base import HypervisorUnavailable
from tests.flow.stories import begin, only_step


@pytest.fixture
def counted():
    """`counted(name, **labels)`: by how much a counter grew since the test began."""
    before = {}

    def value(name: str, **labels: str) -> float:
        now = REGISTRY.get_sample_value(f"stillwater_{name}", labels) or 0.0
        return now - before.get((name, *sorted(labels.items())), 0.0)

    for family in REGISTRY.collect():
        for one in family.samples:
            if one.name.startswith("stillwater_"):
                before[one.name.removeprefix("stillwater_"), *sorted(one.labels.items())] = one.value
    return value


def test_a_step_that_is_done_and_how_long_it_took(api, cloud, counted):
    begin("stop", api, cloud)
    step = only_step(cloud)
    assert counted("steps_total", action="stop", step=step.name, outcome="done") == 0
    cloud.work()
    assert counted("steps_total", action="stop", step=step.name, outcome="done") == 1
    assert counted("step_seconds_count", action="stop", step=step.name) == 1


def test_a_step_that_is_tried_again_and_one_that_fails(api, cloud, counted):
    server_id = begin("pause", api, cloud)
    step = only_step(cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("pause", error=HypervisorUnavailable)
    host.run(step.pk)
    assert counted("steps_total", action="pause", step=step.name, outcome="retried") == 1
    host.driver.faults.fail("pause")
    with target_cell(host.cell):
        Step.objects.filter(pk=step.pk).update(not_before=None)
    cloud.work()
    assert counted("steps_total", action="pause", step=step.name, outcome="failed") == 1
    assert counted("steps_total", action="pause", step=step.name, outcome="done") == 0


def test_what_a_killed_host_left_and_what_the_relay_sends_again(api, cloud, counted):
    server_id = begin("stop", api, cloud)
    step, host = only_step(cloud), cloud.host_of(server_id)
    host.begin(step.pk)
    assert host.restart() == 1
    assert counted("steps_recovered_total", action="stop", step=step.name, rule="rerun") == 1
    with target_cell(host.cell):
        Step.objects.filter(pk=step.pk).update(sent_at=timezone.now() - timedelta(hours=1))
        assert recovery.relay() == 1
    assert counted("steps_resent_total") == 1
