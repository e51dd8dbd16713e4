"""The tasks of a cell's conductor."""

from __future__ import annotations

from typing import Any

from cloud.celery import app
from compute import dispatch
from tasks import lifetime, steps, tracker
from tasks.tracker import Kind

lifetime.attach()
tracker.attach(lambda task: Kind.REQUEST)


@app.task(name=dispatch.RUN_STEP)
def run_step(step_id: int, **newer_sender: Any) -> None:
    """Run one journaled step that needs no hypervisor."""
    steps.run(step_id)
