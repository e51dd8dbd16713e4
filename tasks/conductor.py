"""The Celery tasks of a cell's conductor."""

from __future__ import annotations

from typing import Any

from cells.context import target_cell
from cloud.celery import app
from compute.hosts import drain_migrations
from compute.operations import dispatch
from tasks import run_step as tasks_run_step
from tasks import tracker, worker, worker_signals
from tasks.tracker import Kind

worker_signals.attach()
tracker.attach(lambda task: Kind.REQUEST)


@app.task(name=dispatch.RUN_STEP)
def run_step(step_id: int, **newer_sender: Any) -> None:
    """Run one journaled step that needs no hypervisor. Safe to deliver twice."""
    tasks_run_step.run(step_id)


@app.task(name=dispatch.RUN_DRAIN_MIGRATIONS)
def run_drain_migrations(host: str, **newer_sender: Any) -> None:
    """Go on with the drain migrations of a host. The periodic task makes up for a lost message."""
    if not tracker.tracker.refused():
        with target_cell(worker.current().alias):
            drain_migrations.run(host)
