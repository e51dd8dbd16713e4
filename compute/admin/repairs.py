"""The buttons of an open step: retry it now, give it up. Both call the same functions as `manage.py operations`."""

from __future__ import annotations

from django.http import HttpRequest

from cells import scatter
from cells.models import InstanceMapping
from compute.admin import action_forms
from compute.models import Step
from compute.operations import repair

RETRY, GIVE_UP = "retry-step", "give-up-step"
VERBS = (RETRY, GIVE_UP)


def carry_out(request: HttpRequest, mapping: InstanceMapping) -> str:
    """Carry out a pressed button and return a message for the user. A change is written to the admin log."""
    number, reason = request.POST.get("step", ""), request.POST.get("reason", "").strip()[:255]
    giving_up = request.POST.get("verb") == GIVE_UP
    if mapping.cell is None or not number.isdecimal() or len(number) > 18:
        return "No such step."
    if giving_up and not reason:
        return "Nothing was changed: give a reason."
    try:
        with scatter.target_for_write(mapping.cell):
            step = repair.find(int(number))
            if step.server_id != mapping.server_id:
                return "This server has no such step."
            said = repair.give_up(step, by=_who(request), reason=reason) if giving_up else _retry(step)
    except repair.RepairRefused as refused:
        return str(refused)
    except scatter.DATABASE_AWAY as away:
        return f"Cell {mapping.cell} failed meanwhile ({type(away).__name__}). Reload the page before you repeat this."
    done = f"gave up step {step.name}: {reason}" if giving_up else f"retried step {step.name}"
    action_forms.trace(request, mapping, done)
    return said


def _retry(step: Step) -> str:
    repair.retry(step)
    return f"Step {step.name} is retried now."


def _who(request: HttpRequest) -> str:
    return f"admin:{request.user.get_username()}"
