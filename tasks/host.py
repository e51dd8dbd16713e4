"""The Celery tasks of a compute host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from cells.context import target_cell
from cloud import log
from cloud.celery import app
from compute.actions import console_output
from compute.hosts import drain_handback
from compute.operations import dispatch, host_request, versions
from compute.virt.base import VirtError
from tasks import heartbeat, queues, worker, worker_signals
from tasks import run_step as tasks_run_step
from tasks.tracker import Kind, Work, attach, tracker

logger = log.get(__name__)
worker_signals.attach()
if versions.current() >= dispatch.OPS_SINCE:
    queues.open_queues(app)
CALLS = {"console_output": console_output.answer}


@app.task(name=dispatch.RUN_STEP)
def run_step(step_id: int, **newer_sender: Any) -> None:
    """Run one journaled step on this host. Safe to deliver twice."""
    tasks_run_step.run(step_id)


@app.task(name=dispatch.FOLLOW_DRAIN_REQUESTS)
def follow_drain_requests(**newer_sender: Any) -> None:
    """Read our own service record now: an operator has changed the drain request."""
    heartbeat.now()


@app.task(name=dispatch.ANSWER_CALL)
def answer_call(call_id: str, **newer_sender: Any) -> None:
    """Answer a call that an API request waits for. Safe to deliver twice."""
    me = worker.current()
    with target_cell(me.alias):
        call = host_request.claim(call_id)
        if call is None:
            return
        if me.driver is None or call.method not in CALLS:
            host_request.answer(call, error=f"This host does not know the call {call.method}.")
            return
        try:
            host_request.answer(call, CALLS[call.method](me.driver, call.server_id, call.params))
        except VirtError as error:
            logger.warning("host_request.failed", method=call.method, server=call.server_id, error=repr(error))
            host_request.answer(call, error=str(error) or type(error).__name__)


def kind_of(task: Any) -> Kind:
    """Return the kind of a message, as far as draining is concerned: a step's kind follows from its queue."""
    if task.name != dispatch.RUN_STEP:
        return {dispatch.ANSWER_CALL: Kind.CALL, dispatch.FOLLOW_DRAIN_REQUESTS: Kind.DRAIN_REQUEST}[task.name]
    ops = dispatch.host_queue(settings.HOST, dispatch.OPS)
    heard_on = (task.request.delivery_info or {}).get("routing_key")
    return Kind.OPERATION if heard_on == ops else Kind.REQUEST


def take_the_next(ended: Work) -> None:
    """Wake the oldest steps that were left in the journal while no slot was free."""
    if ended.kind is Kind.REQUEST:
        _fill(tracker.take_skipped(), drain_handback.send_next, tracker.skip)
    if ended.is_long:
        _fill(tracker.take_long_skipped(), drain_handback.send_next_long, tracker.skip_long)


def _fill(free: int, send: Callable[[str, int], int], skip: Callable[[], None]) -> None:
    if not free:
        return
    me = worker.current()
    try:
        with target_cell(me.alias):
            sent = send(me.host, free)
    except DatabaseError as error:
        logger.warning("queues.database_unavailable", error=repr(error))
        sent = free
    if sent >= free:  # there may be more steps
        skip()


attach(kind_of)
tracker.bound(settings.HOST_SLOTS, settings.LONG_SLOTS)
tracker.tell(take_the_next)
