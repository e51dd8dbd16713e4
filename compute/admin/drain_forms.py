"""The buttons of a service: drain, extend, undrain, return servers. They record the request; the process drains."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanWidget,
)

from cells import scatter
from cells.models import Cell
from compute.hosts import drain
from compute.hosts.drain_moves import AT_ONCE
from compute.models import Service
from compute.models.host import COMPUTE

YEAR = 366 * 24 * 60  # minutes


def _minutes(label: str) -> forms.FloatField:
    return forms.FloatField(
        label=label, min_value=0, max_value=YEAR, required=False, widget=UnfoldAdminDecimalFieldWidget,
        help_text="Empty: no deadline.",
    )  # fmt: skip


def _at_once(label: str, help_text: str, initial: int | None = None) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, min_value=1, max_value=1000, required=False, initial=initial,
        widget=UnfoldAdminIntegerFieldWidget, help_text=help_text,
    )  # fmt: skip


class DrainForm(forms.Form):
    """The parameters of a drain."""

    reason = forms.CharField(max_length=255, required=False, widget=UnfoldAdminTextInputWidget)
    moves = _at_once("Servers migrated in parallel", "Empty: servers stay. Running servers migrate live, others cold.")
    minutes = _minutes("Deadline, in minutes")
    exit = forms.BooleanField(
        label="Exit when drained", required=False, widget=UnfoldBooleanWidget,
        help_text="Otherwise the process stays, drained, until it is undrained.",
    )  # fmt: skip


def drain_form(service: Service | None, auto_id: str) -> DrainForm:
    """Return a drain form. That of a conductor or scheduler has no `moves`, because they have no servers."""
    form = DrainForm(auto_id=auto_id)
    if service is not None and service.binary != COMPUTE:
        del form.fields["moves"]
    return form


class ReturnForm(forms.Form):
    """The parameters of returning servers."""

    moves = _at_once("Servers migrated in parallel", "Servers that the drain moved and that are still there.", AT_ONCE)


class ExtendForm(forms.Form):
    """The parameters of a later deadline."""

    minutes = _minutes("New deadline, in minutes from now")


def why_not(cell: Cell, service: Service | None, down: str) -> str:
    """Return why the buttons cannot be used now; "" when they can."""
    if service is None:
        return f"Cell {cell} does not answer ({down}): its services accept no requests until it is up again."
    if not service.is_up and not service.drain_wanted and not service.drain_moves:
        return f"{service} is down; it cannot be drained."
    return ""


def nothing_changed(cell: Cell, down: scatter.CellFailure | None) -> str:
    """Return the message for a service that could not be read."""
    return why_not(cell, None, down.reason) if down else "The service does not exist any more."


def carry_out(cell: Cell, service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    """Carry out a pressed button. Return a message for the user, and whether anything was changed."""
    verb = VERBS.get(asked.get("verb", ""))
    if verb is None:
        return "Unknown action.", False
    if verb not in (_undrain, _return) and not service.is_up:
        return f"{service} is down; it cannot be drained.", False
    try:
        with scatter.target_for_write(cell):
            return verb(service, asked, by)
    except scatter.AWAY as exc:
        return f"Cell {cell} failed meanwhile ({type(exc).__name__}). Reload the page before you repeat this.", False


def _drain(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    form = DrainForm(asked)
    if not form.is_valid():
        return _wrong(form), False
    reason, minutes, end = (form.cleaned_data[name] for name in ("reason", "minutes", "exit"))
    moves = form.cleaned_data["moves"] or 0
    if moves and service.binary != COMPUTE:
        return f"{service} has no servers to migrate.", False
    drain.request(service, by=by, reason=reason, seconds=_seconds(minutes), then_exit=end, moves=moves)
    first = f"servers migrate first, {moves} in parallel; " if moves else ""
    return f"drain ({first}{_time(minutes)}{', then exit' if end else ''}): {reason or 'no reason given'}", True


def _extend(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    form = ExtendForm(asked)
    if not form.is_valid():
        return _wrong(form), False
    if not service.drain_state:
        return f"{service} is not draining: there is no deadline to extend.", False
    drain.extend(service, _seconds(form.cleaned_data["minutes"]) or 0)
    return f"drain deadline extended ({_time(form.cleaned_data['minutes'])})", True


def _undrain(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    drain.withdraw(service)
    return "undrain: the service accepts work again", True


def _return(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    form = ReturnForm(asked)
    if not form.is_valid():
        return _wrong(form), False
    if service.binary != COMPUTE:
        return f"{service} has no servers to migrate.", False
    moves = form.cleaned_data["moves"] or AT_ONCE
    alone = [f"{line.server_id} (on {line.at})" for line in drain.withdraw(service, bring_back=moves)]
    kept = f"; not returned, because they were moved since: {', '.join(alone)}" if alone else ""
    return f"undrain: the service accepts work again, and its servers return, {moves} in parallel{kept}", True


def _wrong(form: forms.Form) -> str:
    return "; ".join(f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items())


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else minutes * 60


def _time(minutes: float | None) -> str:
    return f"{minutes:g} min" if minutes else "no deadline"


VERBS: dict[str, Any] = {"drain": _drain, "extend": _extend, "undrain": _undrain, "return": _return}
