"""The Celery tasks of a scheduler."""

from __future__ import annotations

from typing import Any

from cloud import log
from cloud.celery import app
from compute.builds import build
from compute.operations import dispatch
from tasks import run_step, worker, worker_signals
from tasks.tracker import Kind, attach, tracker

worker_signals.attach()
attach(lambda task: Kind.REQUEST)


@app.task(name=dispatch.SCHEDULE)
def schedule(server_id: str, **newer_sender: Any) -> None:
    """Find a place for one requested server. Safe to deliver twice."""
    if refused := tracker.refused():
        run_step.give_back(refused, worker.current(), dispatch.SCHEDULE, {"server_id": server_id})
        return
    work = tracker.here()
    if work is not None:
        work.server_id = server_id
    log.clear()
    build.place(server_id)
