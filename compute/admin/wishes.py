"""The buttons of a service: drain, more time, take work again. Each records a wish and nothing else."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from cells import scatter
from cells.context import target_cell
from cells.models import Cell
from compute import draining
from compute.models import Service

YEAR = 366 * 24 * 60  # minutes


def _minutes(label: str) -> forms.FloatField:
    return forms.FloatField(
        label=label, min_value=0, max_value=YEAR, required=False, widget=UnfoldAdminDecimalFieldWidget,
        help_text="Empty: as long as it takes.",
    )  # fmt: skip


class Drain(forms.Form):
    """What a drain needs to know."""

    reason = forms.CharField(max_length=255, required=False, widget=UnfoldAdminTextInputWidget)
    minutes = _minutes("Minutes it may take")
    exit = forms.BooleanField(
        label="End the process afterwards", required=False, widget=UnfoldBooleanWidget,
        help_text="Else it stays, drained, until it is undrained.",
    )  # fmt: skip


class Extend(forms.Form):
    """How much more time."""

    minutes = _minutes("Minutes from now")


def why_not(cell: Cell, service: Service | None, down: str) -> str:
    """Why the buttons are of no use now; "" when they are."""
    if service is None:
        return f"Cell {cell} does not answer ({down}): nothing can be asked of its services until it is back."
    if not service.is_up and not service.drain_wanted:
        return f"{service} is down: there is nobody to drain."
    return ""


def nothing_changed(cell: Cell, down: scatter.Down | None) -> str:
    """What to say when the service could not even be read."""
    return why_not(cell, None, down.reason) if down else "The service is gone."


def carry_out(cell: Cell, service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    """What became of a pressed button, in words, and whether anything was changed."""
    verb = VERBS.get(asked.get("verb", ""))
    if verb is None:
        return "There is no such button.", False
    if verb is not _undrain and not service.is_up:
        return f"{service} is down: there is nobody to drain.", False
    try:
        with target_cell(cell):
            return verb(service, asked, by)
    except scatter.AWAY as exc:
        return f"Cell {cell} went away ({type(exc).__name__}). Look again before you ask again.", False


def _drain(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    form = Drain(asked)
    if not form.is_valid():
        return _wrong(form), False
    reason, minutes, end = (form.cleaned_data[name] for name in ("reason", "minutes", "exit"))
    draining.ask(service, by=by, reason=reason, seconds=_seconds(minutes), then_exit=end)
    return f"drain ({_time(minutes)}{', then exit' if end else ''}): {reason or 'no reason given'}", True


def _extend(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    form = Extend(asked)
    if not form.is_valid():
        return _wrong(form), False
    if not service.drain_state:
        return f"{service} is not draining: there is no deadline to move.", False
    draining.extend(service, _seconds(form.cleaned_data["minutes"]) or 0)
    return f"more time for the drain ({_time(form.cleaned_data['minutes'])})", True


def _undrain(service: Service, asked: QueryDict, by: str) -> tuple[str, bool]:
    draining.undo(service)
    return "undrain: it takes work again", True


def _wrong(form: forms.Form) -> str:
    return "; ".join(f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items())


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else minutes * 60


def _time(minutes: float | None) -> str:
    return f"{minutes:g} min" if minutes else "as long as it takes"


VERBS: dict[str, Any] = {"drain": _drain, "extend": _extend, "undrain": _undrain}
