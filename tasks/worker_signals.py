"""Start and end of a worker process, tied to Celery's signals (public API only)."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from typing import Any

import tenacity
from celery import signals
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, close_old_connections

from cells.context import target_cell
from cloud import env, log, metrics, systemd
from cloud.tls import failures
from compute.builds import leases
from compute.hosts import drain_handback, fenced
from compute.operations import dispatch, recovery, versions
from compute.power import sync
from compute.virt.base import GuestEvent, VirtError
from tasks import connections, drain, heartbeat, inventory, periodic, queues, restart_guests, shutdown_recorder, worker
from tasks.tracker import Kind, tracker

logger = log.get(__name__)
_consumer: Any = None  # Celery's consumer, once the worker is ready


def attach() -> None:
    """Connect to Celery's signals; the task module of each role calls this when it is imported."""
    signals.worker_init.connect(_init_worker, weak=False)
    signals.worker_ready.connect(_ready, weak=False)
    signals.worker_shutting_down.connect(_shutting_down, weak=False)
    signals.worker_shutdown.connect(_ended, weak=False)
    connections.attach()


def _init_worker(**_: Any) -> None:
    try:
        me = worker.register()
    except ImproperlyConfigured as wrong:  # Celery would log it and go on without an identity
        env.stop(str(wrong))
    logging.getLogger("celery.worker.consumer.consumer").addFilter(_say_why_tls_failed)
    logger.info("worker.started", worker=me.name, incarnation=me.incarnation, version=versions.current())
    with suppress(Error):  # the database is away: then nothing can be claimed either
        heartbeat.register(me)
        # a drained host begins nothing, not even its first step
        tracker.refuse(refusing=heartbeat.read_drain_request(me).wanted)


def _say_why_tls_failed(record: logging.LogRecord) -> bool:
    """Log our sentence before Celery's "Cannot connect", which has the error of OpenSSL alone."""
    for error in record.args if isinstance(record.args, tuple) else ():
        if isinstance(error, BaseException) and (reason := failures.describe(error)):
            logger.warning("broker.tls_failed", reason=reason)
    return True


def _ready(sender: Any, **_: Any) -> None:
    global _consumer
    me, _consumer = worker.current(), sender
    shutdown_recorder.start(me)
    periodic.start(me)
    listening = drain.start(me, queues.ConsumerHandle(sender))
    if tracker.refuses:
        listening.enqueue(heartbeat.DrainRequest(wanted=True))  # the first beat reads the rest of it
    threading.Thread(target=_startup, args=(me, listening), name="startup", daemon=True).start()
    metrics.serve(settings.METRICS_PORT, settings.METRICS_BIND)
    systemd.warn_if_impatient(settings.GRACEFUL_SHUTDOWN_TIMEOUT)
    systemd.watch(listening.is_alive)
    systemd.ready("takes work")


def _shutting_down(sig: str, how: str, **_: Any) -> None:
    """Handle worker_shutting_down, sent by a drain that ends the process, and by Celery itself during startup."""
    periodic.pause()
    logger.info("worker.shutting_down", signal=sig, how=how)


def _ended(sender: Any, **_: Any) -> None:
    """End the process: Celery has stopped consuming, and every thread of its pool has ended."""
    heartbeat.stop()
    me = worker.current()
    shutdown_recorder.stop()
    if me.driver is not None:
        me.driver.close()
    logger.info("worker.ended", worker=me.name)
    if drain.is_leaving():
        # Python's own finalization takes another second and does nothing that is needed.
        _exit(sender)


def _superseded() -> None:
    """Close the driver first, then exit: a newer process of this name has taken over.

    The steps that run here are in the journal, and the newer process recovers them. The exit code is 0: a supervisor
    that started this process again would end the newer one.
    """
    me = worker.current()
    logger.critical(
        "worker.superseded", worker=me.name, incarnation=me.incarnation, in_progress=len(tracker.running()),
        what_to_do="Two processes have one name (STILLWATER_HOST). This one ends; see that it is not started again.",
    )  # fmt: skip
    tracker.refuse(refusing=True)
    periodic.pause()
    try:
        if me.driver is not None:
            me.driver.close()
        shutdown_recorder.stop()
    finally:
        _exit(getattr(_consumer, "controller", None))


def _exit(controller: Any) -> None:
    if controller is not None and controller.pidlock:
        controller.pidlock.release()
    logging.shutdown()
    os._exit(0)


def _startup(me: worker.Worker, listening: drain.Drain) -> None:
    """Do the first work of a new incarnation; try until its database and its hypervisor let it."""
    tenacity.Retrying(
        wait=tenacity.wait_exponential(0.5, float(settings.CELL_RETRY_INTERVAL)),
        before=lambda _: close_old_connections(), before_sleep=_log_failed_startup,
    )(_begin_incarnation, me, listening)  # fmt: skip


def _log_failed_startup(attempt: tenacity.RetryCallState) -> None:
    error = attempt.outcome.exception() if attempt.outcome else None
    if isinstance(error, (Error, VirtError)):
        logger.warning("worker.startup_postponed", error=repr(error), retry_in=attempt.upcoming_sleep)
    else:  # a bug: this thread also has to send steps again and to watch the hypervisor
        logger.error("worker.startup_failed", error=repr(error), retry_in=attempt.upcoming_sleep, exc_info=error)


def _begin_incarnation(me: worker.Worker, listening: drain.Drain) -> None:
    if me.role == "scheduler":
        heartbeat.start(listening.status, listening.enqueue, _superseded)
        left = leases.free_leases_of(me.host)
        leases.relay()
        logger.info("worker.ready", worker=me.name, left_behind=left)
        return
    with target_cell(me.alias):
        inventory.report(me)
        if me.driver is not None:
            fenced.power_off_evacuated(me.host, me.driver)
        wanted = heartbeat.read_drain_request(me).wanted
        # not before the inventory: the scheduler may pick a host that is up
        heartbeat.start(listening.status, listening.enqueue, _superseded)
        queue = dispatch.OPS if wanted else ""
        left = recovery.recover(me.name, me.incarnation, tracker.steps, queue)
        if me.driver is not None:
            drain_handback.send_again(me.host)
            shutdown_recorder.look_after_waiting(me)
            restart_guests.after_start(me)
            if settings.HANDLE_LIFECYCLE_EVENTS:
                me.driver.watch(_noticed)
        else:
            recovery.relay()
    logger.info("worker.ready", worker=me.name, left_behind=left)


def _noticed(event: GuestEvent) -> None:
    """Record an event of the hypervisor. Runs in a thread of the driver."""
    me = worker.current()
    log.clear()
    if me.driver is None:
        return
    try:
        close_old_connections()  # a long-lived thread, whose database may have been away
        with tracker.doing(Kind.EVENT, "power event"), target_cell(me.alias):
            sync.record_event(me.host, me.driver, event, booted=restart_guests.with_host(me.driver))
    except Error as error:
        logger.warning("power.event_record_failed", server=event.uuid, error=repr(error))  # the power sync will
