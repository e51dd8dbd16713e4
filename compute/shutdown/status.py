"""The progress and outcome of guest shutdowns, as the shutdown timers tell, for API and admin. In the targeted cell.

A timer is copied to the steps that wait for it, so reading it needs neither the host nor its hypervisor.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from compute.models import Step
from compute.shutdown import grace
from compute.virt.shutdown_timer import ShutdownTimer

UNSEEN = {  # the timer's copy still runs, the step has ended: no process saw the guest go off
    Step.State.DONE: "guest was off after a restart",
    Step.State.FAILED: "given up",
    Step.State.CANCELLED: "given up",
}


def in_progress(server_id: str, database: str | None = None) -> list[Step]:
    """Return the server's open steps that have a shutdown timer, the oldest first. One query."""
    steps = Step.objects.using(database).open(server_id=server_id, timer__isnull=False)
    return list(steps.select_related("action").defer("traceback", "action__params").order_by("pk"))


def as_json(step: Step) -> dict[str, Any] | None:
    """Return a step's timer as the API shows it; None when the step never had one."""
    timer = ShutdownTimer.load(step.timer)
    if timer is None:
        return None
    return {
        "begun": zulu(timer.begun),
        "deadline": zulu(timer.deadline),
        "seconds_left": round(timer.left(time.time()), 1) if step.is_open else 0.0,
        "signals": timer.signals,
        "by": timer.by,
        "outcome": outcome(step, timer),
    }


def outcome(step: Step, timer: ShutdownTimer) -> str:
    """Return how the shutdown ended; empty while it goes on."""
    if timer.runs:
        return UNSEEN.get(Step.State(step.state), "")
    return grace.as_reboot(timer.words()) if step.action.action == "reboot" else timer.words()


def share(step: Step) -> int | None:
    """Return how much of the grace period has passed, in percent; None when the timer has ended."""
    timer = ShutdownTimer.load(step.timer)
    if timer is None or not timer.runs:
        return None
    return percent(timer.begun, timer.deadline, time.time())


def percent(begun: float, deadline: float, now: float) -> int:
    """Return how much of a period has passed, in percent."""
    return round(100 * min(1.0, max(0.0, (now - begun) / (deadline - begun)))) if deadline > begun else 100


def zulu(moment: float) -> str:
    """Return a time as Nova writes it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
