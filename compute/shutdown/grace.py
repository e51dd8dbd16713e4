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

    watcher: ShutdownWatcher | None = None


def set_watcher(watcher: ShutdownWatcher | None) -> None:
    """From now on this process waits with a keeper."""
    _Watch.watcher = watcher


def recheck(server_id: str) -> None:
    """Have the keeper look at a guest's clock now, and say where it is."""
    if _Watch.watcher is not None:
        _Watch.watcher.mind(server_id)


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
    driver, uuid, known = run.hypervisor, run.instance.uuid, ShutdownTimer.load(run.step.timer)
    seconds: float = timeout_for(run.instance, run.params)
    seconds = seconds if at_most is None else min(seconds, at_most)
    try:
        timer = driver.begin_shutdown(uuid, seconds, settings.SHUTDOWN_RETRY_INTERVAL)
    except HypervisorUnavailable:
        raise
    except VirtError:  # this step ends with a fault, and nobody is to pull the plug after it
        if not _others_wait(run):
            with suppress(VirtError):
                driver.stop_timer(uuid)
        recheck(uuid)
        raise
    if timer is not None and timer.runs:
        if _Watch.watcher is not None:
            _Watch.watcher.keep(uuid, timer)
            raise StepWaiting(timer.words(), timer, then=partial(recheck, uuid))
        timer = driver.power_off(uuid, timer.left(timer.now()), timer.interval)
    if timer is not None and (known is None or known.runs) and _Watch.watcher is not None:
        _Watch.watcher.over(uuid, timer)  # news: others may wait for it, too
    if timer is None or timer.ended < run.step.queued_at.timestamp():  # of another story
        timer = known
    if timer is None:
        return "was off already"
    run.step.timer = timer.facts  # on record with the step's end
    return timer.words() if timer.ended else "guest was off after a restart"


def _others_wait(run: StepContext) -> bool:
    """Whether the guest's clock is also another action's."""
    waiting = Step.objects.filter(server_id=run.instance.uuid, host=run.step.host, state=Step.State.WAITING)
    return waiting.filter(timer__isnull=False).exclude(pk=run.step.pk).exists()


def as_reboot(words: str) -> str:
    """What `shut_down` says, of a guest that is on again."""
    return words.replace("forced off", "fell back to a hard reboot")


def end_now(run: StepContext) -> None:
    """End the clock of a guest that somebody is shutting down with grace, and that is to go off otherwise now."""
    timer = run.hypervisor.timer(run.instance.uuid)
    if timer is not None and timer.runs:
        ended = run.hypervisor.begin_shutdown(run.instance.uuid, 0, timer.interval)
        if ended is not None and _Watch.watcher is not None:
            _Watch.watcher.over(run.instance.uuid, ended)  # told now: a guest that boots forgets its clock
