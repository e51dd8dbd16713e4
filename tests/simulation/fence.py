"""While a story runs: whatever a claimed step writes, it writes in a transaction that has looked at its claim first.

A rule of docs/journal.md that no final state shows: most of the time nobody comes between.
"""

from __future__ import annotations

import re
from typing import Any

from compute import running
from tests.simulation.kernel import Simulation
from tests.simulation.patches import Faults

WRITES = re.compile(r'(INSERT(?: OR IGNORE)? INTO|UPDATE|DELETE FROM) "(\w+)"')
# what may be written without the claim, as it says nothing of the step's own work
FREE = {
    ("UPDATE", "compute_step"): re.compile(r'SET "sent_at" = NULL'),  # a message that was not sent
}


def put_on() -> None:
    """Once."""
    run_step = running.run_step

    def watched(action: Any, step: Any, driver: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if me is None:
            run_step(action, step, driver)
            return
        me.what["step"] = step
        try:
            run_step(action, step, driver)
        finally:
            me.what.pop("step", None)

    running.run_step = watched


def watch(broken: list[str]) -> None:
    """Every statement from now on; what breaks the rule is added to the list."""

    def look(alias: str, sql: str, params: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        step = me.what.get("step") if me is not None else None
        if me is None or step is None:
            return
        token = getattr(step, "token", "")
        if sql.startswith("BEGIN") and me.atomic == 1:
            me.what["fenced"] = False
        if token and params and token in params and '"compute_step"' in sql:
            if me.atomic:
                me.what["fenced"] = True
            return
        wrote = WRITES.match(sql)
        if wrote is None or (me.atomic and me.what.get("fenced")):
            return
        allowed = FREE.get((wrote[1], wrote[2]))
        if allowed is None or not allowed.search(sql):
            words = f"unfenced: step {step.name} of {step.action.action}: {wrote[1]} {wrote[2]}"
            if words not in broken:
                broken.append(words)

    Faults.watch = look
