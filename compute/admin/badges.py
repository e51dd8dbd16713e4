"""The badges of server, step and service states: one table, so that a state looks the same on every page."""

from __future__ import annotations

from datetime import timedelta

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells.scatter import CellFailure
from compute.models import Service, Step
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
    "MIGRATING": (look.BUSY, "⇄"),
    "RESIZE": (look.BUSY, "⇄"),
    "REVERT_RESIZE": (look.BUSY, "⇄"),
    "VERIFY_RESIZE": (look.WARN, "⇄"),
    "REBUILD": (look.BUSY, "↻"),
    "SOFT_DELETED": (look.GREY, "×"),
    "SHELVED": (look.GREY, "▤"),
    "SHELVED_OFFLOADED": (look.GREY, "▢"),
    "ERROR": (look.BAD, "✖"),
    "DELETED": (look.GREY, "×"),
    "UNKNOWN": (look.GREY, "?"),
}
STEP: dict[str, tuple[str, str]] = {
    Step.State.QUEUED: (look.GREY, "…"),
    Step.State.RUNNING: (look.BUSY, "◌"),
    Step.State.WAITING: (look.BUSY, "◷"),
    Step.State.DONE: (look.GOOD, "✓"),
    Step.State.FAILED: (look.BAD, "✖"),
    Step.State.CANCELLED: (look.GREY, "×"),
    "elsewhere": (look.GREY, "⇄"),
}
LINK = "text-primary-600 dark:text-primary-500"
SLOW = timedelta(minutes=2)  # amber when queued or running for longer


def status(word: str, title: str = "") -> SafeString:
    """Return the badge of a server status."""
    colour, sign = STATUS.get(word, (look.GREY, "•"))
    return look.label(word, colour, sign, title)


def power(number: int) -> str:
    """Return the name of a power state."""
    try:
        return PowerState(number).name
    except ValueError:
        return str(number)


def step_state(step: Step) -> SafeString:
    """Return the badge of a step: amber when queued or running for longer than SLOW, or waiting past its deadline."""
    colour, sign = STEP.get(step.state, (look.GREY, "•"))
    now, waits = timezone.now(), step.state == Step.State.WAITING
    begun = step.started_at if step.state == Step.State.RUNNING else step.queued_at
    slow = step.state in (Step.State.QUEUED, Step.State.RUNNING) and begun and now - begun > SLOW
    if slow or (waits and step.deadline and now > step.deadline):
        colour = look.WARN
    return look.label(step.state, colour, sign, step.details if waits else "")


def state(word: str) -> SafeString:
    """Return the badge of an operation or a drain migration; grey for a state that STEP does not list."""
    colour, sign = STEP.get(word, (look.GREY, "•"))
    return look.label(word, colour, sign)


def administrative_state(service: Service | None) -> SafeString:
    """Return what the operator requested of a service, and when."""
    if service is None:
        return look.label("-")
    if service.is_returning:
        return look.label("return servers", look.BUSY, "◌", f"{service.drain_moves} at a time")
    if service.drain_wanted or service.drain_state == "emptying":
        word = "drain, then exit" if service.drain_then_exit else "drain"
        word = word if service.drain_wanted else f"empty, then {word}"
        drain = look.label(word, look.WARN, "▽", f"by {service.drain_by}: {service.drain_reason}")
        label = format_html("{} {}", drain, look.age(service.drain_asked_at))
        return format_html("{} {}", label, look.label("disabled", look.WARN, "‖")) if service.disabled else label
    return look.label("disabled", look.WARN, "‖") if service.disabled else look.label("enabled", look.GOOD, "▶")


def operational_state(service: Service | None, down: CellFailure | None = None) -> SafeString:
    """Return the state a service reports, and since when; unknown when its cell is down."""
    if down is not None:
        return look.label("unknown", look.GREY, "?", f"its cell is down: {down.reason}")
    if service is None:
        return look.label("no service", look.WARN, "!")
    if service.ended_at is not None:
        return format_html("{} {}", look.label("stopped", look.GREY, "■"), look.age(service.ended_at))
    if not service.is_up:
        return look.up_or_down("forced down" if service.forced_down else "no heartbeat")
    if service.draining_since is None:
        return look.up_or_down()
    if service.drained_at is not None:
        return format_html("{} {}", look.label("drained", look.GOOD, "✓"), look.age(service.drained_at))
    label = look.label(f"draining, {service.in_progress} left", look.BUSY, "◌")
    return format_html("{} {}", label, look.age(service.draining_since))


def deadline(service: Service) -> str:
    """Return how long the drain of a service may still take."""
    if not service.drain_state:
        return "-"
    if service.drain_deadline is None:
        return "no deadline"
    left = (service.drain_deadline - timezone.now()).total_seconds()
    return f"in {look.seconds(left)}" if left > 0 else f"exceeded by {look.seconds(-left)}"


def reason(service: Service) -> str:
    """Return why a service takes no work: the reasons of its drain and of its disabling."""
    drain = (service.drain_by, service.drain_reason) if service.drain_state else ()
    said = ": ".join(filter(None, drain))
    return "; ".join(filter(None, (said, service.disabled_reason if service.disabled else "")))


def what(action: str, step: str) -> str:
    """Return an action and its step, or one name when both are the same."""
    return action if action == step else f"{action}: {step}"


def short(long_id: str) -> SafeString:
    """Return the beginning of an id, with the whole id as tooltip."""
    prefix = "req-" if long_id.startswith("req-") else ""
    most = len(prefix) + 8
    text = long_id if len(long_id) <= most else f"{long_id[:most]}…"
    return format_html('<span class="whitespace-nowrap" title="{}">{}</span>', long_id, text)


def server_link(server_id: str) -> SafeString:
    """Return a link to the page of a server."""
    url = reverse("admin:cells_instancemapping_change", args=(server_id,))
    return format_html('<a class="{} whitespace-nowrap" href="{}">{}</a>', LINK, url, short(server_id))
