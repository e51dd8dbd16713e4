"""The signs of server and step states: one table, so that a state looks the same on every page."""

from __future__ import annotations

from datetime import timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_look as look
from compute.models import Step
from compute.virt.base import PowerState

STATUS: dict[str, tuple[str, str]] = {
    "ACTIVE": (look.GOOD, "▶"),
    "BUILD": (look.BUSY, "◌"),
    "REBOOT": (look.BUSY, "↻"),
    "HARD_REBOOT": (look.BUSY, "↻"),
    "SHUTOFF": (look.GREY, "■"),
    "PAUSED": (look.WARN, "‖"),
    "SUSPENDED": (look.WARN, "‖"),
    "RESCUE": (look.WARN, "✚"),
    "VERIFY_RESIZE": (look.BUSY, "⇄"),
    "ERROR": (look.BAD, "✖"),
    "DELETED": (look.GREY, "×"),
    "UNKNOWN": (look.GREY, "?"),
}
STEP: dict[str, tuple[str, str]] = {
    Step.State.QUEUED: (look.GREY, "…"),
    Step.State.RUNNING: (look.BUSY, "◌"),
    Step.State.DONE: (look.GOOD, "✓"),
    Step.State.FAILED: (look.BAD, "✖"),
    Step.State.CANCELLED: (look.GREY, "×"),
}
SLOW = timedelta(minutes=2)  # amber: nothing has changed for longer


def status(word: str, title: str = "") -> SafeString:
    """A server's status."""
    colour, sign = STATUS.get(word, (look.GREY, "•"))
    return look.label(word, colour, sign, title)


def power(number: int) -> str:
    """The guest's power state, as a word."""
    try:
        return PowerState(number).name
    except ValueError:
        return str(number)


def step_state(step: Step) -> SafeString:
    """Waiting or running, amber when for long."""
    colour, sign = STEP.get(step.state, (look.GREY, "•"))
    begun = step.started_at if step.state == Step.State.RUNNING else step.queued_at
    is_open = step.state in (Step.State.QUEUED, Step.State.RUNNING)
    if is_open and begun and timezone.now() - begun > SLOW:
        colour = look.WARN
    return look.label(step.state, colour, sign)


def server_link(server_id: str) -> SafeString:
    """The server's page."""
    url = reverse("admin:cells_instancemapping_change", args=(server_id,))
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, server_id)
