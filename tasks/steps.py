"""Running one step of the journal: what hosts and conductors have in common."""

from __future__ import annotations

from cells.context import target_cell
from cloud import log
from compute import actions, journal, lifecycle
from tasks import tracker, worker

logger = log.get(__name__)


def run(step_id: int) -> None:
    """Claim the step and run it; nothing when it is done, not due, or not its turn. Safe to call twice."""
    me = worker.current()
    log.clear()
    with target_cell(me.alias):
        step = journal.claim(step_id, me.name, me.incarnation, host=me.host if me.driver else "")
        if step is None:
            return
        with tracker.tracking(step):
            lifecycle.run_step(actions.named(step.action.key), step, me.driver)
