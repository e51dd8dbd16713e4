"""A guest's grace period: who decides how long it is, and how a step waits for it without a thread.

The clock itself is kept with the guest (`virt/clock.py`), turned by the host's keeper (`virt/keeper.py`), and
copied to the steps that wait for it. So it goes on without a database, and without the process that started it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings

from compute.models import Step, shutdown_preferences
from compute.operations.step import SHUTDOWN_TIMEOUT, StepWaiting
from compute.virt.base import HypervisorUnavailable, VirtError
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher

if TYPE_CHECKING:
    from compute.models import Instance
    from compute.operations.action import StepContext

OWN, OF_IMAGE, LONGEST = shutdown_preferences.OWN, shutdown_preferences.OF_IMAGE, shutdown_preferences.LONGEST
ASKED = SHUTDOWN_TIMEOUT


class _Watch:
    """The keeper of this process. Without one (a command, a test by hand) whoever shuts a guest down waits for it."""

    keeper: ShutdownWatcher | None = None


def set_watcher(keeper: ShutdownWatcher | None) -> None:
    """From now on this process waits with a keeper."""
    _Watch.keeper = keeper


def recheck(server_id: str) -> None:
    """Have the keeper look at a guest's clock now, and say where it is."""
    if _Watch.keeper is not None:
        _Watch.keeper.mind(server_id)


def timeout_for(instance: Instance, params: dict[str, Any] | None = None) -> int:
    """The strongest word counts: the request's, the server's own, its image's, the operator's."""
    said = shutdown_preferences.said(instance.metadata, instance.image.get("properties", {}))
    for seconds in (shutdown_preferences.seconds((params or {}).get(ASKED)), said):
        if seconds is not None:
            return seconds
    return int(settings.SHUTDOWN_TIMEOUT)


def requested_timeout(instance: Instance) -> int | None:
    """The server's own grace period, if it has one."""
    return shutdown_preferences.own(instance.metadata)


def shut_down(run: StepContext, at_most: float | None = None) -> str:
    """Off when this returns; what happened, in words. Raises StepWaiting: run again when the guest is off.

    Run again after a restart, the guest gets what is left of its time and no more. `at_most`: whatever its grace;
    0 ends also a clock that somebody else started.
    """
    driver, uuid, known = run.hypervisor, run.instance.uuid, ShutdownTimer.load(run.step.clock)
    seconds: float = timeout_for(run.instance, run.params)
    seconds = seconds if at_most is None else min(seconds, at_most)
    try:
        clock = driver.begin_shutdown(uuid, seconds, settings.SHUTDOWN_RETRY_INTERVAL)
    except HypervisorUnavailable:
        raise
    except VirtError:  # this step ends with a fault, and nobody is to pull the plug after it
        if not _others_wait(run):
            with suppress(VirtError):
                driver.stop_clock(uuid)
        recheck(uuid)
        raise
    if clock is not None and clock.runs:
        if _Watch.keeper is not None:
            _Watch.keeper.keep(uuid, clock)
            raise StepWaiting(clock.words(), clock, then=partial(recheck, uuid))
        clock = driver.power_off(uuid, clock.left(clock.now()), clock.interval)
    if clock is not None and (known is None or known.runs) and _Watch.keeper is not None:
        _Watch.keeper.over(uuid, clock)  # news: others may wait for it, too
    if clock is None or clock.ended < run.step.queued_at.timestamp():  # of another story
        clock = known
    if clock is None:
        return "was off already"
    run.step.clock = clock.facts  # on record with the step's end
    return clock.words() if clock.ended else "guest was off after a restart"


def _others_wait(run: StepContext) -> bool:
    """Whether the guest's clock is also another action's."""
    waiting = Step.objects.filter(server_id=run.instance.uuid, host=run.step.host, state=Step.State.WAITING)
    return waiting.filter(clock__isnull=False).exclude(pk=run.step.pk).exists()


def as_reboot(words: str) -> str:
    """What `shut_down` says, of a guest that is on again."""
    return words.replace("forced off", "fell back to a hard reboot")


def end_now(run: StepContext) -> None:
    """End the clock of a guest that somebody is shutting down with grace, and that is to go off otherwise now."""
    clock = run.hypervisor.clock(run.instance.uuid)
    if clock is not None and clock.runs:
        ended = run.hypervisor.begin_shutdown(run.instance.uuid, 0, clock.interval)
        if ended is not None and _Watch.keeper is not None:
            _Watch.keeper.over(run.instance.uuid, ended)  # told now: a guest that boots forgets its clock
