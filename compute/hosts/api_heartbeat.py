"""The heartbeat of a process of the API: a row in the global database with its service version.

Nothing but `upgrade_check` reads it, so a heartbeat that fails is tried again without a message.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models import QuerySet

from cells import database_clock
from cells.query_deadline import cut_after
from compute.models import ApiProcess
from compute.operations import versions

SECONDS = 5.0  # for the database to answer


def begin(leaving: threading.Event) -> threading.Thread:
    """Beat every REPORT_INTERVAL in a thread until `leaving` is set, which removes the row."""
    thread = threading.Thread(target=_beat, args=(leaving,), name="api-heartbeat", daemon=True)
    thread.start()
    return thread


def living() -> QuerySet[ApiProcess]:
    """Return the processes that serve: those with a heartbeat within SERVICE_DOWN_TIME."""
    return ApiProcess.objects.filter(database_clock.is_recent("seen_at", settings.SERVICE_DOWN_TIME))


def _beat(leaving: threading.Event) -> None:
    _try(_record)
    while not leaving.wait(settings.REPORT_INTERVAL):
        _try(_record)
    _try(_remove)


def _try(write: Callable[[], None]) -> None:
    # An API that is newer than its database has no table yet: that is an Error, too.
    with suppress(Error), cut_after("default", SECONDS):
        write()
    close_old_connections()


def _record() -> None:
    """Write the row of this process, and remove those of processes that were killed."""
    own = {"version": versions.current(), "seen_at": database_clock.now()}
    ApiProcess.objects.update_or_create(host=settings.HOST, pid=os.getpid(), defaults=own)
    silent = ~database_clock.is_recent("seen_at", settings.SERVICE_DOWN_TIME)
    ApiProcess.objects.filter(silent).delete()


def _remove() -> None:
    ApiProcess.objects.filter(host=settings.HOST, pid=os.getpid()).delete()
