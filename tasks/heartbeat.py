"""A thread that writes this process's Service row, whatever else goes on. It stops last."""

from __future__ import annotations

import threading

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell
from cloud import log
from compute.models import Service
from tasks import worker

logger = log.get(__name__)
NAME = "heartbeat"
_stop = threading.Event()
_now = threading.Event()


def start() -> None:
    """Beat now, then every REPORT_INTERVAL seconds. Started already is success."""
    if not any(thread.name == NAME for thread in threading.enumerate()):
        threading.Thread(target=_beat_for_ever, name=NAME, daemon=True).start()


def now() -> None:
    """Beat at once: there is something to say, or to read."""
    _now.set()


def stop() -> None:
    """The last thing a process does."""
    _stop.set()
    _now.set()


def beat(me: worker.Worker) -> None:
    """Say once that we live; makes the row the first time."""
    now = timezone.now()
    zone = settings.AVAILABILITY_ZONE if me.role == "host" else "internal"
    with target_cell(me.alias):
        mine = Service.objects.filter(binary=me.binary, host=me.host)
        known = mine.update(
            last_seen_up=now, incarnation=me.incarnation, version=worker.VERSION, availability_zone=zone
        )
        if not known:
            Service.objects.bulk_create(
                [Service(binary=me.binary, host=me.host, last_seen_up=now, incarnation=me.incarnation,
                         version=worker.VERSION, availability_zone=zone)],
                ignore_conflicts=True,
            )  # fmt: skip


def _beat_for_ever() -> None:
    me, failing = worker.current(), False
    while not _stop.is_set():
        try:
            close_old_connections()
            beat(me)
            if failing:
                logger.info("heartbeat.back")
            failing = False
        except (DatabaseError, Cell.DoesNotExist) as error:
            if not failing:
                logger.warning("heartbeat.database_away", error=repr(error))
            failing = True
        _now.wait(settings.REPORT_INTERVAL)
        _now.clear()
