"""The grace period of a guest: which setting decides its length, and how a step waits for it without a thread.

The shutdown timer (`virt/shutdown_timer.py`) is stored with the guest, driven by the host's shutdown watcher
(`virt/shutdown_watcher.py`), and copied to the steps that wait for it. So it goes on without a database, and without
the process that started it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from django.conf import settings

from compute.models import Step, shutdown_preferences
from compute.operations.step import StepWaiting
from compute.virt.base import HypervisorUnavailable, VirtError
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher

if TYPE_CHECKING:
    from compute.models import Instance
    from compute.operations.action import StepContext

OWN, OF_IMAGE, LONGEST = shutdown_preferences.OWN, shutdown_preferences.OF_IMAGE, shutdown_preferences.LONGEST


class _Watch:
    """The process-wide shutdown watcher. None (a command, a manual test): `shut_down()` blocks instead."""

    watcher: ShutdownWatcher | None = None


def set_watcher(watcher: ShutdownWatcher | None) -> None:
    """Set the shutdown watcher of this process."""
    _Watch.watcher = watcher


def recheck(server_id: str) -> None:
    """Have the watcher check a guest's timer now, and report it again if it has ended."""
    if _Watch.watcher is not None:
        _Watch.watcher.recheck(server_id)


def timeout_for(instance: Instance, asked: int | None = None) -> int:
    """Return the grace period in seconds: the request's, else the server's, its image's, the operator's."""
    said = shutdown_preferences.said(instance.metadata, instance.image.get("properties", {}))
    for seconds in (shutdown_preferences.seconds(asked), said):
        if seconds is not None:
            return seconds
    return int(settings.SHUTDOWN_TIMEOUT)


def requested_timeout(instance: Instance) -> int | None:
    """Return the server's own grace period in seconds; None when it has none."""
    return shutdown_preferences.own(instance.metadata)


def shut_down(run: StepContext, at_most: float | None = None) -> str:
    """Shut the guest down; return how it went off. Raises StepWaiting: the step runs again when the guest is off.

    May run twice: after a restart the guest gets the rest of its time and no more. `at_most`: an upper limit in
    seconds, whatever the grace period; 0 also ends a timer that another action started.
    """
    driver, uuid, known = run.hypervisor, run.instance.uuid, ShutdownTimer.load(run.step.timer)
    seconds: float = timeout_for(run.instance, run.params.shutdown_timeout)
    seconds = seconds if at_most is None else min(seconds, at_most)
    try:
        timer = driver.begin_shutdown(uuid, seconds, settings.SHUTDOWN_RETRY_INTERVAL)
    except HypervisorUnavailable:
        raise
    except VirtError:  # this step fails: unless others wait, the guest must not be forced off later
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
        _Watch.watcher.over(uuid, timer)  # other steps may wait for it, too
    if timer is None or timer.ended < run.step.queued_at.timestamp():  # timer of an earlier shutdown
        timer = known
    if timer is None:
        return "was off already"
    run.step.timer = timer.facts  # written when the step is closed
    return timer.words() if timer.ended else "guest was off after a restart"


def _others_wait(run: StepContext) -> bool:
    """Return whether other steps wait for the guest's timer."""
    waiting = Step.objects.filter(server_id=run.instance.uuid, host=run.step.host, state=Step.State.WAITING)
    return waiting.filter(timer__isnull=False).exclude(pk=run.step.pk).exists()


def as_reboot(words: str) -> str:
    """Return the text of `shut_down` for a guest that was rebooted."""
    return words.replace("forced off", "fell back to a hard reboot")


def end_now(run: StepContext) -> None:
    """Force a guest off whose shutdown timer runs, and tell the steps that wait for it."""
    timer = run.hypervisor.timer(run.instance.uuid)
    if timer is not None and timer.runs:
        ended = run.hypervisor.begin_shutdown(run.instance.uuid, 0, timer.interval)
        if ended is not None and _Watch.watcher is not None:
            _Watch.watcher.over(run.instance.uuid, ended)  # now: the timer is gone once the guest boots
