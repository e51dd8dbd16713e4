"""The heartbeat: a thread that writes this process's Service row, whatever else goes on. It stops last.

Each beat also reads the operator's drain request, and passes it to the drain. The row holds the incarnation of the
newest process of its name: a process that finds another incarnation there than its own is superseded, and stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import Error, close_old_connections
from django.db.models import QuerySet
from django.utils import timezone

from cells import database_clock, failure_reasons
from cells.context import target_cell
from cells.query_deadline import cut_after
from cloud import log
from compute.models import Service
from compute.operations import versions
from tasks import worker

logger = log.get(__name__)
NAME = "heartbeat"
SECONDS = 10.0  # limit for a beat: a database that hangs must not delay the next ones
_stop = threading.Event()
_now = threading.Event()
_beating = threading.Lock()
_registering = threading.Lock()


class Superseded(Exception):
    """A newer process of the same name has put its incarnation into the service record."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """The drain request in a service record; `wanted` False: there is none, or it was taken back."""

    wanted: bool
    by: str = ""
    reason: str = ""
    deadline: datetime | None = None
    then_exit: bool = False
    asked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What the process reports of its drain. `signal`: the name of the signal that ends it, if one does."""

    since: datetime | None = None
    drained_at: datetime | None = None
    in_progress: int = 0
    deadline: datetime | None = None
    signal: str = ""


def start(
    status: Callable[[], WorkerStatus], tell: Callable[[DrainRequest], None], superseded: Callable[[], None]
) -> None:
    """Beat now, then every REPORT_INTERVAL seconds. Calling it again is success.

    `superseded` is called once, when a newer process of the same name is found in the service record.
    """
    if not any(thread.name == NAME for thread in threading.enumerate()):
        args = (status, tell, superseded)
        threading.Thread(target=_beat_for_ever, args=args, name=NAME, daemon=True).start()


def now() -> None:
    """Beat at once, because there is something to report or to read."""
    _now.set()


def stop(seconds: float = 0.0) -> None:
    """Begin no more beats; wait up to `seconds` for one that is being written. The last thing a process does."""
    _stop.set()
    _now.set()
    if seconds and _beating.acquire(timeout=seconds):
        _beating.release()


def register(me: worker.Worker) -> None:
    """Put this process's incarnation into its service record: once per process, before it claims any step.

    From then on an older process of the same name claims nothing, and stops at its next beat. A conductor is up from
    here on, so that no other conductor takes its steps over. A host is up with its first beat, which comes after its
    inventory; until then its record still says that its last incarnation ended.
    """
    with _registering:
        if me.is_registered:
            return
        is_up = {"ended_at": None, "last_seen_up": database_clock.now()} if me.role != "host" else {}
        with target_cell(me.alias) as alias, cut_after(alias, SECONDS):
            mine = Service.objects.filter(binary=me.binary, host=me.host)
            if not mine.update(incarnation=me.incarnation, **is_up):
                row = {"ended_at": timezone.now(), "incarnation": me.incarnation, **is_up}
                Service.objects.bulk_create([Service(binary=me.binary, host=me.host, **row)], ignore_conflicts=True)
                mine.update(incarnation=me.incarnation)  # another process of this name may have created the row
        me.is_registered = True


def beat(me: worker.Worker, status: WorkerStatus) -> DrainRequest:
    """Write one heartbeat; return the operator's drain request. Raises Superseded."""
    register(me)
    with target_cell(me.alias) as alias, cut_after(alias, SECONDS):
        mine = Service.objects.filter(binary=me.binary, host=me.host, incarnation=me.incarnation)
        said = _facts(status)
        if not me.has_beaten:  # clears the end of the last incarnation; a late beat must not clear our own
            said["ended_at"] = None
        if not mine.update(**said):
            me.is_registered = Service.objects.filter(binary=me.binary, host=me.host).exists()
            if me.is_registered:
                raise Superseded(me.name)
            return beat(me, status)  # an operator deleted the record of a running service
        me.has_beaten = True
        if status.signal and status.since is not None:
            _show_signal(mine, status)
        row = mine.first()
        # None: superseded just now, or deleted; the next beat tells which
        return beat(me, status) if row is None else _drain_request(row)


def read_drain_request(me: worker.Worker) -> DrainRequest:
    """Return the drain request before the first beat: a drained host that starts again stays drained."""
    with target_cell(me.alias):
        row = Service.objects.filter(binary=me.binary, host=me.host).first()
        return _drain_request(row) if row is not None else DrainRequest(wanted=False)


def _facts(status: WorkerStatus) -> dict[str, Any]:
    zone = settings.AVAILABILITY_ZONE if settings.ROLE == "host" else "internal"
    return {
        "last_seen_up": database_clock.now(), "version": versions.current(), "availability_zone": zone,
        "draining_since": status.since, "drained_at": status.drained_at, "in_progress": status.in_progress,
    }  # fmt: skip


def _show_signal(mine: QuerySet[Service], status: WorkerStatus) -> None:
    """Show a drain by signal in the row, where operators see it and may move its deadline. Written once.

    A drain request that moves servers is not overwritten: it goes on in the next incarnation.
    """
    mine.filter(drain_wanted=False, drain_moves=0).exclude(drain_asked_at=status.since).update(
        drain_by=status.signal, drain_reason="", drain_deadline=status.deadline, drain_then_exit=True,
        drain_asked_at=status.since,
    )  # fmt: skip


def _drain_request(row: Service) -> DrainRequest:
    return DrainRequest(
        row.drain_wanted, row.drain_by, row.drain_reason, row.drain_deadline, row.drain_then_exit,
        row.drain_asked_at,
    )  # fmt: skip


def _beat_for_ever(
    status: Callable[[], WorkerStatus], tell: Callable[[DrainRequest], None], superseded: Callable[[], None]
) -> None:
    me, failing = worker.current(), False
    while not _stop.is_set():
        try:
            close_old_connections()
            with _beating:
                if _stop.is_set():
                    return
                wanted = beat(me, status())
            tell(wanted)
            if failing:
                logger.info("heartbeat.restored")
            failing = False
        except Superseded:
            superseded()
            return
        except Error as error:
            if not failing:
                reason = failure_reasons.describe(error)
                logger.warning("heartbeat.database_unavailable", reason=reason, error=repr(error))
            failing = True
        except Exception:  # a bug: without this thread the process works on, and is reported as down
            logger.exception("heartbeat.failed")
            failing = True
        retry = settings.CELL_RETRY_INTERVAL if failing else settings.REPORT_INTERVAL
        _now.wait(min(settings.REPORT_INTERVAL, retry))
        _now.clear()
