"""What a project holds while a cell is down, in both ways of counting it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from cells import circuit_breaker
from cells.context import target_cell
from compute.models import Instance
from compute.placement import quota
from tests.flow import stories


@pytest.fixture(params=["api", "cells"])
def counting(request, settings):
    """Where it is counted."""
    settings.QUOTA_COUNT_FROM = request.param
    return request.param


def boot(client, cloud, name="more"):
    return client.send("post", "/servers", cloud.body(name))


def limit(api, instances):
    quota.set_limits(api.caller.project_id, {"instances": instances})


def test_a_cell_that_is_down_lets_nobody_exceed_the_quota(api, cloud, counting):
    limit(api, 2)
    first = cloud.boot(api)
    cloud.boot(api, "b")
    circuit_breaker.record_failure(cloud.cell_of(first).id, "cut off")
    answer = boot(api, cloud)
    assert answer.status_code == 403
    assert ("Quota exceeded" in stories.message(answer)) == (counting == "api")


def test_who_has_servers_in_a_cell_that_is_down_may_not_boot_when_cells_are_counted(api, cloud, settings):
    settings.QUOTA_COUNT_FROM = "cells"
    cell = cloud.cell_of(cloud.boot(api))
    circuit_breaker.record_failure(cell.id, "cut off")
    answer = boot(api, cloud)
    assert answer.status_code == 403
    assert f"in a cell that does not answer now ({cell.name})" in stories.message(answer)
    circuit_breaker.record_recovery(cell.id)
    assert boot(api, cloud).status_code == 202


def test_the_policy_lets_an_admin_boot(admin, cloud, settings):
    settings.QUOTA_COUNT_FROM = "cells"
    circuit_breaker.record_failure(cloud.cell_of(cloud.boot(admin)).id, "cut off")
    assert boot(admin, cloud).status_code == 202


def test_nothing_is_blocked_when_the_global_side_counts(api, cloud, settings):
    settings.QUOTA_COUNT_FROM = "api"
    circuit_breaker.record_failure(cloud.cell_of(cloud.boot(api)).id, "cut off")
    assert boot(api, cloud).status_code == 202


def test_who_has_only_deleted_servers_there_is_not_blocked(api, cloud, settings):
    settings.QUOTA_COUNT_FROM = "cells"
    server_id = cloud.boot(api)
    cell = cloud.cell_of(server_id)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    circuit_breaker.record_failure(cell.id, "cut off")
    assert boot(api, cloud).status_code == 202


def test_strangers_are_not_blocked(api, stranger, cloud, settings):
    settings.QUOTA_COUNT_FROM = "cells"
    circuit_breaker.record_failure(cloud.cell_of(cloud.boot(api)).id, "cut off")
    assert boot(stranger, cloud).status_code == 202


def test_cells_say_how_large_servers_really_are(api, cloud, settings):
    settings.QUOTA_COUNT_FROM = "cells"
    quota.set_limits(api.caller.project_id, {"cores": 4})
    server_id = cloud.boot(api)
    with target_cell(cloud.cell_of(server_id)):
        Instance.objects.filter(uuid=server_id).update(vcpus=4)
    answer = boot(api, cloud)
    assert "already used 4 of 4 cores" in stories.message(answer)


def test_many_boots_at_once_while_a_cell_goes_down_do_not_exceed_the_quota(api, cloud, counting):
    limit(api, 7)
    cell = cloud.cell_of(cloud.boot(api))

    def ask(number):
        if number == 10:
            circuit_breaker.record_failure(cell.id, "cut off")
        try:
            return boot(api, cloud, f"n{number}").status_code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as callers:
        codes = list(callers.map(ask, range(30)))
    assert codes.count(202) <= 6
    assert set(codes) <= {202, 403}
    assert quota.usage(api.caller.project_id).instances == 1 + codes.count(202)
