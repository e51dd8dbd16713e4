"""Rules that are checked while a simulation runs: a step writes only in a transaction that has checked its claim.

Before its first driver verb the step has checked its claim, if the database answers; no verb is called inside a
transaction. These rules of docs/journal.md show in no final state: most of the time no other process interferes.
"""

from __future__ import annotations

import re
from typing import Any

from compute.operations import runner
from tests.simulation import log
from tests.simulation.cloud import Cloud, ask
from tests.simulation.kernel import Actor, Simulation
from tests.simulation.patches import Faults

WRITES = re.compile(r'(INSERT(?: OR IGNORE)? INTO|UPDATE|DELETE FROM) "(\w+)"')
# Writes that need no claim, because they record nothing of the step's own work.
FREE = {
    ("UPDATE", "compute_step"): re.compile(r'SET "sent_at" = NULL'),  # a message that was not sent
}
REPAIRS = {"server.lost", "server.remapped", "quota.size_corrected"}  # repairs: without a restore they show a bug
SILENT = {"statement", "commit failed", "commit lost", "database"}  # faults in which the database may not have answered
MILD = {"weather", "verb", "power", "slow"}  # faults in which every process stays up, so no step may be taken over
CLAIMS = re.compile(r'UPDATE "compute_step" SET "state" = .*"worker" = .*"token" = ')
_broken: list[str] = []  # violations of the current run
_is_mild = False


def put_on() -> None:
    """Wrap the runner, once in a process."""
    run_step = runner.run_step

    def watched(action: Any, step: Any, driver: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if me is None:
            run_step(action, step, driver)
            return
        me.what |= {"step": step, "asked": False}
        if me.what.pop("superseded", False):
            _broken.append(f"superseded: {me} has claimed step {step.name} of {step.action.action}")
        try:
            run_step(action, step, driver)
        finally:
            me.what.pop("step", None)

    say_lost = runner._log_claim_lost

    def lost(why: object) -> None:
        if _is_mild:
            _broken.append(f"taken: {Simulation.current and Simulation.current.actor} was never away, and lost: {why}")
        say_lost(why)

    runner.run_step, runner._log_claim_lost = watched, lost


def watch(cloud: Cloud) -> None:
    """Check every statement and every verb from now on; violations are added to the cloud's list."""
    global _broken, _is_mild
    broken = _broken = cloud.broken_rules
    _is_mild = cloud.harm <= MILD
    answers = not cloud.harm & SILENT

    def look(alias: str, sql: str, params: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if me is not None and CLAIMS.match(sql):
            me.what["superseded"] = _is_superseded(me, alias)
        step = me.what.get("step") if me is not None else None
        if me is None or step is None:
            return
        token = getattr(step, "token", "")
        if sql.startswith("BEGIN") and me.atomic == 1:
            me.what["fenced"] = False
        if token and params and token in params and '"compute_step"' in sql:
            me.what["asked"] = True
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

    def before(verb: str) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if me is None:
            return
        if me.atomic:
            broken.append(f"{me} calls {verb} of a hypervisor inside a transaction")
        step = me.what.get("step")
        if step is not None and answers and not me.what.get("asked"):
            words = f"unfenced: step {step.name} of {step.action.action} has not asked before {verb}"
            if words not in broken:
                broken.append(words)

    def heard(event: str, fields: dict[str, Any]) -> None:
        if event in REPAIRS and not cloud.is_restored:
            broken.append(f"repaired: {event} of {fields.get('server', '')[:8]}, and no database was restored")

    log.listeners[:] = [heard]
    Faults.watch = look
    for machine in cloud.machines.values():
        machine.before = before


def _is_superseded(me: Actor, alias: str) -> bool:
    """Return whether the service record of the actor's process names another incarnation now, at a claim."""
    worker = me.process.me
    name = (worker.binary, worker.host)
    return any(
        incarnation not in ("", worker.incarnation)
        for (incarnation,) in ask(alias, "SELECT incarnation FROM compute_service WHERE binary = ? AND host = ?", *name)
    )
