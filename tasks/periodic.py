"""Periodic tasks, in a thread of the process they belong to.

Each may run in several processes at once: it settles its races in the database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from cells import broker_circuit_breaker, circuit_breaker
from cells.context import target_cell
from cloud import log
from compute.actions import delete
from compute.builds import leases
from compute.external_events import deferred
from compute.hosts import drain_migrations, fenced
from compute.operations import recovery
from compute.periodic import (
    abandoned_snapshots,
    confirm_resizes,
    offload_shelved,
    purge_events,
    reclaim_deleted,
    stale_delete_flags,
    stale_group_members,
)
from compute.servers import deferred_deletes, last_known, mappings
from compute.virt.base import VirtError
from tasks import inventory, restart_guests, worker
from tasks.tracker import Kind, tracker

logger = log.get(__name__)
_paused, _back = threading.Event(), threading.Event()


@dataclass(slots=True)
class Periodic:
    """One periodic task, and its interval in seconds."""

    name: str
    every: float
    work: Callable[[worker.Worker], object]
    due: float = 0.0
    after_outage: bool = False  # also at once when a cell, or a broker, that was down is back


def start(me: worker.Worker) -> threading.Thread:
    """Start the thread of this process's periodic tasks."""
    circuit_breaker.when_up(_back.set)
    broker_circuit_breaker.when_up(_back.set)
    thread = threading.Thread(target=_loop, args=(me, tasks_of(me.role)), name="periodic", daemon=True)
    thread.start()
    return thread


def pause() -> None:
    """Begin no more tasks; one that has begun ends."""
    _paused.set()


def resume() -> None:
    """Begin tasks again."""
    _paused.clear()


def tasks_of(role: str) -> list[Periodic]:
    """Return the periodic tasks of a role."""
    relay = settings.RELAY_INTERVAL
    if role == "scheduler":
        return [
            Periodic("relay_build_requests", relay, lambda me: leases.relay(), after_outage=True),
            Periodic("deferred_deletes", relay, lambda me: deferred_deletes.carry_out(), after_outage=True),
            Periodic("deferred_events", relay, lambda me: deferred.deliver(), after_outage=True),
            Periodic("stale_delete_flags", settings.RESEND_AFTER, lambda me: stale_delete_flags.clear()),
            Periodic("abandoned_snapshots", settings.RESEND_AFTER, lambda me: abandoned_snapshots.discard()),
            Periodic("stale_group_members", 60, lambda me: stale_group_members.remove()),
            Periodic("repair_mappings", 60, lambda me: mappings.repair()),
        ]
    if role == "conductor":
        rounds = [
            Periodic("relay", relay, lambda me: recovery.relay(), after_outage=True),
            Periodic("strays", 15, _recover_strays),
            Periodic("dead_conductors", 10, lambda me: recovery.recover_dead_conductors(me.name)),
            Periodic("waiting_deletes", relay, lambda me: delete.end_waiting()),
            Periodic("drain_migrations", relay, lambda me: drain_migrations.run_all()),
            Periodic("last_known", relay, lambda me: last_known.sweep(me.cell_id)),
            Periodic("purge_events", purge_events.EVERY, lambda me: purge_events.purge()),
        ]
        if settings.RECLAIM_INSTANCE_INTERVAL > 0:
            rounds.append(Periodic("reclaim_deleted", 15, lambda me: reclaim_deleted.reclaim()))
        if settings.SHELVED_OFFLOAD_TIME >= 0:
            rounds.append(Periodic("offload_shelved", 60, lambda me: offload_shelved.offload()))
        if settings.RESIZE_CONFIRM_WINDOW:
            often_enough = max(relay, min(60.0, settings.RESIZE_CONFIRM_WINDOW / 10))
            rounds.append(Periodic("confirm_resizes", often_enough, lambda me: confirm_resizes.confirm()))
        return rounds
    rounds = [
        Periodic("strays", 15, _recover_strays),
        Periodic("restart_guests", 2, restart_guests.look),
        Periodic("evacuated_guests", 15, lambda me: me.driver and fenced.power_off_evacuated(me.host, me.driver)),
        Periodic("inventory", 60, inventory.report),
    ]
    if settings.SYNC_POWER_STATE_INTERVAL > 0:
        rounds.append(Periodic("power_sync", settings.SYNC_POWER_STATE_INTERVAL, restart_guests.sync))
    return rounds


def _recover_strays(me: worker.Worker) -> int:
    return recovery.recover(me.name, me.incarnation, tracker.steps)


def _loop(me: worker.Worker, rounds: list[Periodic]) -> None:
    now = time.monotonic()
    for one in rounds:
        one.due = now + one.every
    while True:
        is_back = _back.wait(max(0.05, min(one.due for one in rounds) - time.monotonic()))
        _back.clear()
        for one in rounds:
            if one.due > time.monotonic() and not (is_back and one.after_outage):
                continue
            with tracker.doing(Kind.PERIODIC, one.name) as work:
                if work.refused or _paused.is_set():
                    logger.debug("periodic.skipped", name=one.name)
                else:
                    _run(one, me)
            one.due = time.monotonic() + one.every


def _run(one: Periodic, me: worker.Worker) -> None:
    log.clear()
    try:
        close_old_connections()
        if me.role == "scheduler":
            one.work(me)
        else:
            with target_cell(me.alias):
                one.work(me)
    except DatabaseError as error:
        logger.warning("periodic.database_unavailable", name=one.name, error=repr(error))
    except VirtError as error:
        logger.warning("periodic.hypervisor_unavailable", name=one.name, error=repr(error))
    except Exception:
        logger.exception("periodic.failed", name=one.name)
