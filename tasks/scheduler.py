"""The tasks of a scheduler."""

from __future__ import annotations

from typing import Any

from cloud import log
from cloud.celery import app
from compute import dispatch
from compute.scheduler import place
from tasks import lifetime

lifetime.attach()


@app.task(name=dispatch.SCHEDULE)
def schedule(server_id: str, **newer_sender: Any) -> None:
    """Find a place for one requested server. Safe to deliver twice."""
    log.clear()
    place.place(server_id)
