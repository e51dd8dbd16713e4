"""Shutting a guest down with grace: signal, signal again, and pull the plug at the deadline."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.utils import timezone

from compute.virt.base import Driver, GuestInvalidState, GuestNotFound, PowerState

_NOTHING_TO_ASK = {PowerState.NOSTATE, PowerState.SHUTDOWN, PowerState.CRASHED}
_CANNOT_HEAR = {PowerState.PAUSED, PowerState.SUSPENDED}


def timeout_for(image_properties: dict[str, str]) -> int:
    """Seconds of grace: the image's `os_shutdown_timeout`, else the operator's SHUTDOWN_TIMEOUT."""
    try:
        return max(0, int(image_properties.get("os_shutdown_timeout", settings.SHUTDOWN_TIMEOUT)))
    except ValueError:
        return int(settings.SHUTDOWN_TIMEOUT)


def shut_down(driver: Driver, uuid: str, deadline: datetime) -> str:
    """Off when this returns: by the guest itself before `deadline`, else by force. What happened, in words.

    Signals go out every SHUTDOWN_RETRY_INTERVAL seconds; it ends the moment the guest is off.
    """
    state = driver.power_state(uuid)
    if state in _NOTHING_TO_ASK:
        driver.power_off(uuid)
        return "was off already"
    if state in _CANNOT_HEAR:
        driver.power_off(uuid)
        return f"forced off at once: it was {state.name.lower()}"
    begun, signals = timezone.now(), 0
    while (left := _seconds_until(deadline)) > 0:
        try:
            driver.signal_shutdown(uuid)
        except (GuestInvalidState, GuestNotFound):
            break  # it went off between the look and the signal
        signals += 1
        if driver.wait_until_off(uuid, min(left, settings.SHUTDOWN_RETRY_INTERVAL)):
            break
    took = (timezone.now() - begun).total_seconds()
    forced = driver.power_state(uuid) not in _NOTHING_TO_ASK
    driver.power_off(uuid)
    if forced:
        return f"forced off after {took:.0f} s, {signals} signals"
    return f"guest shut down in {took:.1f} s, {signals} signals"


def _seconds_until(deadline: datetime) -> float:
    return (deadline - timezone.now()).total_seconds()
