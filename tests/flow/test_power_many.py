"""A thousand servers of a host: one look at the hypervisor, and always as many queries."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cells.context import target_cell
from compute.models import Instance, InstanceAction, Step
from compute.power import sync
from compute.virt.base import PowerState
from tests.flow import stories
from tests.flow.powers import counted

MANY = 300
AUTHORITIES = ["hypervisor", "database", "nova", "record-only"]


def multiply(cloud, server_id, count):
    """More servers like this one; what the hypervisor says of each can be set."""
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        original = Instance.objects.get(uuid=server_id)
        columns = {
            f.attname: getattr(original, f.attname) for f in Instance._meta.fields if f.name not in ("id", "uuid")
        }
        Instance.objects.bulk_create(
            [Instance(**columns | {"launched_at": timezone.now()}) for _ in range(count - 1)]
        )
        states = dict.fromkeys(Instance.objects.values_list("uuid", flat=True), PowerState.RUNNING)
    host.driver._state.powers = lambda: states
    return host, states


def queries(host, expected):
    """What a sync asks the database, by its first word, when so many differ. One look at the hypervisor."""
    host.driver.calls.clear()
    with target_cell(host.cell) as alias, CaptureQueriesContext(connections[alias]) as captured:
        assert sync.sync(host.name, host.driver) == expected
    assert list(host.driver.calls) == [("guests", "")]
    asked = Counter(query["sql"].split()[0] for query in captured)
    inserts = asked.pop("INSERT", 0)
    if connections[host.cell.alias].vendor == "postgresql":  # SQLite takes no more than 999 values at a time
        asked["INSERT"] = inserts
    return asked


@pytest.mark.parametrize("count", [10, MANY])
def test_the_sync_costs_one_call_and_one_query_when_nothing_differs(count, api, cloud):
    host, _ = multiply(cloud, cloud.boot(api), count)
    assert queries(host, 0) == Counter(SELECT=1)


@pytest.mark.parametrize("truth", AUTHORITIES)
def test_a_power_outage_of_all_of_them_costs_as_many_queries_as_one_of_ten(truth, api, cloud, settings):
    settings.POWER_TRUTH = truth
    host, states = multiply(cloud, cloud.boot(api), MANY)
    ten, rest = list(states)[:10], list(states)[10:]
    states.update(dict.fromkeys(ten, PowerState.SHUTDOWN))
    few = queries(host, 10)
    states.update(dict.fromkeys(rest, PowerState.SHUTDOWN))
    many = queries(host, MANY - 10)
    assert many == few
    assert few.total() <= 12
    _all_were_seen_to(host, truth)


def _all_were_seen_to(host, truth):
    followed, put_back = truth in ("hypervisor", "nova"), truth == "database"
    with target_cell(host.cell):
        rows = Instance.objects.filter(deleted=False)
        assert set(rows.values_list("power_state", flat=True)) == {PowerState.SHUTDOWN}
        assert set(rows.values_list("vm_state", flat=True)) == {"stopped" if followed else "active"}
        assert set(rows.values_list("task_state", flat=True)) == {"powering-on" if put_back else None}
        steps = Step.objects.filter(event="compute_power_sync")
        expected = MANY if followed or put_back else 0
        assert steps.filter(state="queued" if put_back else "done").count() == steps.count() == expected
        actions = InstanceAction.objects.filter(steps__in=steps)
        assert actions.values("request_id").distinct().count() == expected
        assert actions.filter(finished_at__isnull=put_back).count() == expected


def test_one_that_is_busy_meanwhile_is_left_to_its_task_and_the_others_are_seen_to(api, cloud):
    busy = cloud.boot(api)
    host, states = multiply(cloud, busy, 10)
    look = host.driver.guests

    def looks_while_somebody_pauses_one():
        seen = look()
        stories.act(api, busy, {"pause": None})
        return seen

    host.driver.guests = looks_while_somebody_pauses_one
    states.update(dict.fromkeys(states, PowerState.SHUTDOWN))
    with target_cell(host.cell):
        sync.sync(host.name, host.driver)
        assert Instance.objects.filter(vm_state="stopped").count() == 9
        assert InstanceAction.objects.filter(action="stop").count() == 9
    assert stories.states(cloud, busy) == ("active", "pausing")


def test_guests_nobody_knows_and_servers_without_a_guest_are_said_once(api, cloud, caplog):
    server_id, elsewhere = cloud.boot(api), str(uuid4())
    host, states = multiply(cloud, server_id, 3)
    deleted = cloud.boot(api)
    api.delete(f"/servers/{deleted}")
    cloud.work()
    stranger = str(uuid4())
    lost = next(uuid for uuid in states if uuid != server_id)
    del states[lost]
    states |= {stranger: PowerState.RUNNING, elsewhere: PowerState.RUNNING, deleted: PowerState.RUNNING}
    with target_cell(host.cell):
        Instance.objects.filter(uuid=next(u for u in states if u not in (server_id, stranger, elsewhere, deleted))) \
            .update(uuid=elsewhere, host="another")
    for _ in range(3):
        assert sorted(queries(host, 0).elements()) == ["SELECT", "SELECT"]
    said = [record for record in caplog.records if "power.count_differs" in record.getMessage()]
    assert len(said) == 1
    assert stranger in said[0].getMessage()
    assert lost in said[0].getMessage()
    assert elsewhere not in said[0].getMessage()
    assert (counted("guests_orphaned"), counted("guests_missing")) >= (2.0, 1.0)
