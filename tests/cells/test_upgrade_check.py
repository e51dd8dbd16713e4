"""What is left to do of an upgrade, whatever cell is down."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connections
from django.utils import timezone

from cells.context import target_cell
from cells.models import InstanceMapping
from compute.models import ApiProcess, Service
from compute.operations import versions
from tests.cells import rows

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
COMMAND = "upgrade_check"


def worker(cell, binary, host, version):
    with target_cell(cell):
        Service.objects.create(binary=binary, host=host, version=version, last_seen_up=timezone.now())


def an_api(host, version, silent=0):
    seen_at = timezone.now() - timedelta(seconds=silent)
    ApiProcess.objects.create(host=host, pid=ApiProcess.objects.count(), version=version, seen_at=seen_at)


def checked(run):
    ended = run(COMMAND, "--json")
    return ended, {line["check"]: (line["result"], line["what to do"]) for line in json.loads(ended.out)}


def test_a_cloud_of_this_version_has_nothing_to_do(run, cells):
    worker(cells["cell1"], "nova-compute", "h1", versions.CURRENT)
    an_api("control1", versions.CURRENT)
    an_api("killed", versions.CURRENT - 1, silent=settings.SERVICE_DOWN_TIME + 1)
    ended, checks = checked(run)
    assert (ended.code, {result for result, _ in checks.values()}) == (0, {"ok"})


def test_apis_that_do_not_report_their_version_are_not_known(run, cells):
    ended, checks = checked(run)
    assert (ended.code, checks["APIs are upgraded"][0]) == (0, "not known")


def test_what_is_left_is_said_in_its_order_with_the_next_command(run, cells):
    old = versions.CURRENT - 1
    worker(cells["cell1"], "nova-compute", "h1", old)
    worker(cells["cell2"], "nova-compute", "h2", old)
    worker(cells["cell2"], "nova-conductor", "c2", versions.CURRENT)
    worker(cells["cell0"], "nova-scheduler", "s1", old)
    for host, version in (("control2", old), ("control1", versions.CURRENT), ("control1", old)):
        an_api(host, version)
    rows.mapping(cells["cell1"], "older")
    InstanceMapping.objects.update(queued_for_delete=None)
    ended, checks = checked(run)
    assert (ended.code, ended.err.strip()) == (1, "Next: manage.py host restart h1 h2")
    assert checks["conductors are upgraded"] == ("ok", "")
    assert checks["schedulers are upgraded"] == ("to do", "manage.py host restart s1")
    assert checks["APIs are upgraded"] == ("to do", "restart the API on control1 control2")
    assert checks["data is migrated"] == ("to do", "manage.py online_data_migrations (1 row)")


def test_migrations_come_first(run, cells):
    worker(cells["cell1"], "nova-compute", "h1", versions.CURRENT - 1)
    for database in ("default", cells["cell2"].alias):
        with connections[database].cursor() as cursor:
            cursor.execute("UPDATE django_migrations SET name = 'x' || name WHERE app = 'compute'")
    try:
        ended, checks = checked(run)
    finally:
        for database in ("default", cells["cell2"].alias):
            with connections[database].cursor() as cursor:
                cursor.execute("UPDATE django_migrations SET name = substr(name, 2) WHERE app = 'compute'")
    assert (ended.code, ended.err.strip()) == (1, "Next: manage.py migrate, then manage.py cell_migrate (for cell2)")
    assert checks["hosts are upgraded"][0] == "to do"


def test_a_cell_that_does_not_answer_stops_it(run, cells, lost):
    ended, checks = checked(run)
    assert (ended.code, ended.err.strip()) == (2, "Do not go on: something stops the upgrade.")
    result, todo = checks["cells answer"]
    assert (result, todo.startswith("lost does not: ")) == ("stops the upgrade", True)
