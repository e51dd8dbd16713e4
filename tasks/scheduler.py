"""The tasks of a scheduler."""

from __future__ import annotations

from typing import Any

from cloud import log
from cloud.celery import app
from compute import dispatch
from compute.scheduler import place
from tasks import lifetime, steps, worker
from tasks.tracker import Kind, attach, tracker

lifetime.attach()
attach(lambda task: Kind.REQUEST)


@app.task(name=dispatch.SCHEDULE)
def schedule(server_id: str, **newer_sender: Any) -> None:
    """Find a place for one requested server. Safe to deliver twice."""
    if refused := tracker.refused():
        steps.give_back(refused, worker.current(), dispatch.SCHEDULE, {"server_id": server_id})
        return
    work = tracker.here()
    if work is not None:
        work.server_id = server_id
    log.clear()
    place.place(server_id)
