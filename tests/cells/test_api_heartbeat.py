"""The row that a process of the API keeps while it serves."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from compute.hosts import api_heartbeat
from compute.models import ApiProcess
from compute.operations import versions
from tests.live.cloud import eventually

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def leaving():
    """Set at the end, so that no thread is left."""
    event = threading.Event()
    yield event
    event.set()


def test_a_process_has_a_row_until_it_leaves_and_removes_those_of_the_killed(cells, leaving, settings):
    settings.REPORT_INTERVAL = 0.05
    now = timezone.now()
    killed, alive = (ApiProcess(host="other", pid=pid, version=1, seen_at=now) for pid in (1, 2))
    killed.seen_at -= timedelta(seconds=settings.SERVICE_DOWN_TIME + 1)
    for one in (killed, alive):
        one.save()
    thread = api_heartbeat.begin(leaving)
    mine = ApiProcess.objects.filter(host=settings.HOST, pid=os.getpid(), version=versions.current())
    first = eventually("it has a row", lambda: mine.values_list("seen_at", flat=True).first(), pause=0.02)
    eventually("it beats", lambda: mine.get().seen_at > first, pause=0.02)
    assert ApiProcess.objects.count() == 2
    leaving.set()
    thread.join(10)
    assert not thread.is_alive()
    assert [*ApiProcess.objects.values_list("host", "pid")] == [("other", 2)]


def test_an_api_that_is_newer_than_its_database_serves(cells, leaving):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE compute_apiprocess RENAME TO later")
    try:
        leaving.set()
        thread = api_heartbeat.begin(leaving)
        thread.join(10)
        assert not thread.is_alive()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE later RENAME TO compute_apiprocess")
    assert not ApiProcess.objects.exists()
