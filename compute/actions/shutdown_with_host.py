"""Shut a guest down because its host shuts down: in its turn, with its own grace period. It starts with the host."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from compute import state
from compute.errors import StateConflict
from compute.hosts import guest_batches, guest_shutdown
from compute.hosts.guest_shutdown import GuestShutdownParams
from compute.models import Service, Step
from compute.operations import journal
from compute.operations.action import OPS, REQUESTS, On, Role, ServerAction, StepContext, StepSpec
from compute.operations.step import StepWaiting
from compute.power import sync
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState
from compute.virt.shutdown_timer import ShutdownTimer

DOWN = Move(frozenset({VmState.ACTIVE, VmState.PAUSED}), TaskState.POWERING_OFF, VmState.STOPPED)
STAYS = Move(state.LIVING - DOWN.start, TaskState.POWERING_OFF)  # rescued, resized, in ERROR: vm_state stays
# without reboots: a step that joins the shutdown timer of a reboot would find the guest on again
STAYS_OFF = frozenset({TaskState.POWERING_OFF, TaskState.DELETING, TaskState.SOFT_DELETING})
Run = StepContext[GuestShutdownParams]
LOOK_AGAIN = 5.0  # seconds between looks while another action has the server


class ShutdownWithHost(ServerAction[GuestShutdownParams]):
    """Opened by `guest_shutdown.ask` for every server of a host that is on. Only `call_off` there takes it back.

    A server that is being stopped or deleted keeps its task: this step joins the shutdown timer, and ends with it.
    """

    name = "stop"
    role = Role.SHUT_DOWN_WITH_HOST
    move = DOWN
    steps = (StepSpec("power_off", "compute_host_shutdown", On.SOURCE, OPS),)

    def move_for(self, params: GuestShutdownParams) -> Move:
        """Return the move for the state the server had when its turn came."""
        return STAYS if params.stays else DOWN

    def must_run(self, name: str) -> bool:
        """Return True: the host shuts down, whichever action has the server."""
        return True

    def power_off(self, run: Run) -> None:
        """Shut the guest down in its turn. Raises StepWaiting.

        A guest that is off is success; a guest whose memory is saved stays so.
        """
        instance, source = run.instance, run.params.source
        if instance.deleted or instance.host != source:
            timer = ShutdownTimer.load(run.step.timer)
            gone = "deleted meanwhile" if instance.deleted else f"lives on {instance.host}"
            run.note(timer.words() if timer is not None and timer.ended else gone)
            return
        seen = run.hypervisor.power_state(instance.uuid)
        if seen is PowerState.SUSPENDED:
            run.note("left alone: suspended, and its memory is saved")
            return
        if not run.params.begun and (seen in guest_shutdown.ON or _was_shut_down(run)):
            self._begin(run)
        self._shut_down(run)

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """Wake the steps whose turn may have come."""
        guest_batches.wake(run.step.host, run.action.key)

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """Record the server as off, to start again with its host if it was running.

        A server that another action took meanwhile is left to that action.
        """
        if run.params.taken:
            with suppress(StateConflict):
                move, comes_back = self.move_for(run.params), run.params.was_running
                state.finish(run.instance, move, power_state, resumes_with_host=comes_back)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """Record the fault, and wake the steps whose turn may have come: the guest could not be turned off."""
        guest_batches.wake(run.step.host, run.action.key)
        if run.params.taken:
            super().abandon(run, error, power_state)

    def _begin(self, run: Run) -> None:
        """Take the turn and the server, so that no request starts the guest meanwhile. Raises StepWaiting."""
        timer = run.hypervisor.timer(run.instance.uuid)
        with run.fenced(), guest_batches.lock(run.step.host):
            waits = None
            run.instance.refresh_from_db()
            joins = timer is not None and timer.runs and run.instance.task_state in STAYS_OFF
            if not joins and not guest_batches.is_turn(run.step, run.action):
                waits = guest_batches.wait(run.step, guest_batches.WAITS, guest_batches.AGAIN)
            elif not _take(run) and not joins and (busy := _busy_with(run)):
                waits = guest_batches.wait(run.step, f"waits for {busy} to end", LOOK_AGAIN)
            elif joins:
                journal.change_params(run.action, GuestShutdownParams, lambda params: replace(params, joined=True))
            else:
                journal.change_params(run.action, GuestShutdownParams, lambda params: replace(params, begun=True))
        if waits is not None:
            raise waits

    def _shut_down(self, run: Run) -> None:
        """Shut the guest down with its own grace period, cut at the deadline of all. Raises StepWaiting."""
        until = run.params.until
        left = None if until is None else max(0.0, until - time.time())
        try:
            run.note(grace.shut_down(run, at_most=left))
        except StepWaiting as waits:
            waits.seconds = left
            raise


def _was_shut_down(run: Run) -> bool:
    """Return whether the command shut the guest down by itself and the record still has it as running.

    The command does so while this host cannot be asked.
    """
    timer = run.hypervisor.timer(run.instance.uuid)
    ended = timer is not None and timer.ended >= run.step.queued_at.timestamp()
    return ended and run.instance.task_state is None and run.instance.vm_state in sync.RUNS


def _take(run: Run) -> bool:
    """Take an idle server; return False when another action has it, and keeps it."""
    stays = run.instance.vm_state not in DOWN.start
    try:
        state.begin(run.instance, STAYS if stays else DOWN)
    except StateConflict:
        return False
    was_running = run.instance.vm_state != VmState.PAUSED
    journal.change_params(run.action, GuestShutdownParams, lambda params: replace(
        params, taken=True, stays=stays, was_running=was_running,
    ))  # fmt: skip
    return True


def _busy_with(run: Run) -> str:
    """Return what has the server and must end first; "" when nothing will end, or the deadline of all has passed."""
    until = run.params.until
    others = Step.objects.open(server_id=run.instance.uuid).exclude(pk=run.step.pk)
    others = others.exclude(state=Step.State.WAITING, details=journal.FOR_THE_TASK)  # it waits for this step, too
    host = Service.objects.of_host(run.step.host)
    if host is not None and not host.takes_requests:  # a draining host does not begin it
        others = others.exclude(host=host.host, queue=REQUESTS, state=Step.State.QUEUED, attempts=0)
    if not others.exists() or (until is not None and time.time() >= until):
        return ""
    return str(run.instance.task_state or "another step")
