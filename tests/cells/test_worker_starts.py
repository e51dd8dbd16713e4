"""What a worker makes of a database it cannot use: a wrong word ends it, one that is away is waited for."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from cells.context import target_cell
from cells.models import CELL0, Cell
from tasks import heartbeat, worker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.mark.parametrize("role", ["conductor", "host"])
@pytest.mark.parametrize("url", ["carrier-pigeon://loft", "postgresql://u:p@host:port/x", "nonsense"])
def test_a_url_that_is_none_is_said_to_be_wrong(role, url, settings):
    """The process ends with it as a sentence and exit code 78, which systemd knows."""
    settings.ROLE, settings.CELL_UUID = role, "c" * 36
    settings.CELL_DATABASE_URL, settings.CELL_BROKER_URL = url, "memory://"
    with pytest.raises(ImproperlyConfigured, match=r"^STILLWATER_CELL_DATABASE_URL: ") as wrong:
        worker.register()
    assert url not in str(wrong.value), "it may have a password"


@pytest.mark.parametrize("url", ["carrier-pigeon://loft", None])
def test_a_scheduler_takes_a_cell0_that_cannot_be_asked_for_one_that_is_down(url, cells):
    if url is None:
        Cell.objects.filter(pk=CELL0).delete()
    else:
        Cell.objects.filter(pk=CELL0).update(database_url=url)
    me = worker.Worker("scheduler", "scheduler", "")
    with pytest.raises(DatabaseError):
        heartbeat.beat(me, heartbeat.WorkerStatus())


def test_a_worker_that_is_superseded_between_two_statements_of_its_beat_finds_out(cells):
    old, young = (worker.Worker("conductor", "c1", cells["cell1"].id) for _ in range(2))
    heartbeat.beat(old, heartbeat.WorkerStatus())
    came = []

    def comes(execute, sql, params, many, context):
        done = execute(sql, params, many, context)
        if sql.startswith("UPDATE") and not came:
            came.append(young)
            heartbeat.register(young)
        return done

    alias = cells["cell1"].alias
    with target_cell(alias), connections[alias].execute_wrapper(comes), pytest.raises(heartbeat.Superseded):
        heartbeat.beat(old, heartbeat.WorkerStatus())
    assert came
