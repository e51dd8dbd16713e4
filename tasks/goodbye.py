"""The last thing a process writes: that it ended. Bounded, so that an absent database delays nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import Error, connections
from django.db.models import Q
from django.utils import timezone

from cells.context import target_cell
from cloud import log
from compute.models import Service
from tasks import heartbeat, worker

logger = log.get(__name__)
SECONDS = 2.0


def say(me: worker.Worker, unfinished: int) -> None:
    """The service is down at once, not when its heartbeat has become old; a wish to end is fulfilled."""
    heartbeat.stop(SECONDS)  # a beat that comes after would say that we drain
    logger.info("worker.goodbye", worker=me.name, unfinished=unfinished)
    within(SECONDS, lambda: _write(me, unfinished))


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What the work answers, if it does in that time; else None, and it is left behind."""
    answer: list[Any] = []

    def do() -> None:
        try:
            answer.append(work())
        finally:
            connections.close_all()  # this thread's own

    thread = threading.Thread(target=do, name="bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else None


def _write(me: worker.Worker, unfinished: int) -> None:
    fulfilled: dict[str, Any] = {
        "drain_wanted": False, "drain_then_exit": False, "drain_by": "", "drain_reason": "",
        "drain_asked_at": None, "drain_deadline": None,
    }  # fmt: skip
    try:
        with target_cell(me.alias):
            mine = Service.objects.filter(binary=me.binary, host=me.host, incarnation=me.incarnation)
            mine.update(ended_at=timezone.now(), in_progress=unfinished, draining_since=None, drained_at=None)
            # a host that is being emptied goes on with it in its next life
            emptying = Q(drain_wanted=False, drain_moves__gt=0, drain_asked_at__isnull=False)
            mine.exclude(emptying).filter(Q(drain_then_exit=True) | Q(drain_wanted=False)).update(**fulfilled)
    except Error as error:
        logger.warning("worker.goodbye_not_written", error=repr(error))
