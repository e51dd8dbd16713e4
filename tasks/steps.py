"""Running one step of the journal: what hosts and conductors have in common."""

from __future__ import annotations

from cells.context import target_cell
from cloud import killpoints, log
from compute import actions, journal, running
from tasks import worker
from tasks.tracker import tracker

logger = log.get(__name__)


def run(step_id: int) -> None:
    """Claim the step and run it; nothing when it is done, not due, or not its turn. Safe to call twice."""
    tracker.must_accept()
    me = worker.current()
    log.clear()
    killpoints.reached("step.received")
    with target_cell(me.alias):
        step = journal.claim(step_id, me.name, me.incarnation, host=me.host if me.driver else "")
        if step is None:
            return
        work = tracker.here()
        if work is not None:
            work.action, work.name = step.action.action, step.name
            work.server_id, work.request_id = step.server_id, step.action.request_id
        running.run_step(actions.named(step.action.key), step, me.driver)
