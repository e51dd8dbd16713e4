"""The drain of this process: take no new work, wait for what is begun, report what is left, exit.

One thread does it, whatever starts it: a signal, an operator's drain request in the service record, a test. It needs
neither the broker nor the database to begin or to end, and it is the only way a worker ends in good order.

SIGTERM, first SIGINT    drain, then exit 0; at GRACEFUL_SHUTDOWN_TIMEOUT exit 1 with a record of what is left
second SIGTERM           changes nothing
second SIGINT, SIGQUIT   now: record what is left, exit 1
a drain request          drain; then exit, or stay until the request is taken back
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery import signals
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from cells.context import target_cell
from cloud import log, metrics, systemd
from compute.hosts import drain, drain_handback
from tasks import deregister, heartbeat, periodic, restart_guests, shutdown_recorder, worker
from tasks.heartbeat import DrainRequest, WorkerStatus
from tasks.queues import ConsumerHandle
from tasks.tracker import Kind, Work, tracker

logger = log.get(__name__)
REPORT_EVERY = 10.0  # seconds between two lists of what is in progress
LOOK_EVERY = 0.5  # seconds between looks into the journal for what other hosts still need of this one
RESERVE = 5.0  # the last seconds of the timeout, kept to record what is unfinished; at most a tenth of it
SILENCE = 10.0  # seconds without an answer of the journal, after which a process with nothing to do exits all the same
DATABASE_SECONDS = 3.0  # limit for an answer of the database; after it the drain goes on without one
STUCK_AFTER = 15.0  # seconds Celery has to end once nothing is in progress

_leaving = threading.Event()


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that the process received."""

    number: int


class Drain(threading.Thread):
    """The drain thread. Other threads only put orders into its inbox, which is safe in a signal handler."""

    def __init__(self, me: worker.Worker, consuming: ConsumerHandle) -> None:
        super().__init__(name="drain", daemon=True)
        self._me, self._consuming = me, consuming
        self._inbox: queue.SimpleQueue[Signal | DrainRequest | Work] = queue.SimpleQueue()
        self._request = DrainRequest(wanted=False)
        self._signalled = ""  # name of the first signal
        self._signal_deadline: datetime | None = None
        self._signals = 0
        self._since: datetime | None = None
        self._drained_at: datetime | None = None
        self._left = 0
        self._next_report = 0.0
        self._handed_over = False
        self._waits_left = 0  # unfinished waiting steps at the hand-over
        self._silent_since = 0.0  # since when the journal does not answer; 0: it does

    def enqueue(self, order: Signal | DrainRequest | Work) -> None:
        """Give the thread an order. Never blocks."""
        self._inbox.put(order)

    def install(self) -> None:
        """Listen to signals and to ends of work. In the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, lambda caught, _frame: self.enqueue(Signal(caught)))
        tracker.tell(self.enqueue)

    def status(self) -> WorkerStatus:
        """Return the status for the heartbeat."""
        return WorkerStatus(self._since, self._drained_at, self._left, self._deadline(), self._signalled)

    def run(self) -> None:
        """Process orders until the process ends."""
        while True:
            log.clear()
            try:
                self._take(self._next())
                if self._since is not None:
                    self._look()
            except Exception:  # a bug must not stop a drain
                logger.exception("drain.failed")
                time.sleep(LOOK_EVERY)

    # -- orders

    def _next(self) -> Signal | DrainRequest | Work | None:
        patience = None if self._since is None or self._is_over() else LOOK_EVERY
        try:
            return self._inbox.get(timeout=patience)
        except queue.Empty:
            return None

    def _is_over(self) -> bool:
        """Return whether the process is drained and stays: nothing to look at until the next order."""
        return self._drained_at is not None and not self._exits()

    def _take(self, order: Signal | DrainRequest | Work | None) -> None:
        if isinstance(order, Signal):
            self._on_signal(order.number)
        elif isinstance(order, DrainRequest):
            self._on_request(order)
        elif isinstance(order, Work) and self._since is not None:
            logger.info("drain.work_finished", **order.facts(), left=len(tracker.running()))

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self._signals += 1
        if number == signal.SIGQUIT or (number == signal.SIGINT and self._signals > 1):
            self._give_up(f"{name} says now")
        elif self._signalled:
            logger.info("drain.continued", signal=name, since=str(self._since))
        else:
            self._signalled = name
            seconds = settings.GRACEFUL_SHUTDOWN_TIMEOUT
            self._signal_deadline = timezone.now() + timedelta(seconds=seconds) if seconds else None
            signals.worker_shutting_down.send(sender=self._me.name, sig=name, how="Drain", exitcode=0)
            systemd.stopping("draining")  # a signal is final, a drain request is not
            self._drain()

    def _on_request(self, request: DrainRequest) -> None:
        before, self._request = self._request, request
        if self._signalled:
            ours = request.asked_at == self._since and not request.wanted
            if ours and request.deadline != self._signal_deadline:
                self._signal_deadline, self._handed_over = request.deadline, False
                logger.info("drain.deadline_changed", deadline=str(request.deadline))
        elif request.wanted:
            if before.wanted and before != request:
                logger.info("drain.request_changed", by=request.by, reason=request.reason,
                            deadline=str(request.deadline))  # fmt: skip
            self._drain()
        elif before.wanted:
            self._undrain()

    # -- phases

    def _drain(self) -> None:
        """Refuse new work, close the requests queue, report what is in progress, give requests back."""
        self._drained_at = None if self._signalled else self._drained_at
        if self._since is not None:
            return
        self._since = timezone.now()
        tracker.refuse(refusing=True)
        periodic.pause()
        self._consuming.close_requests()
        heartbeat.now()
        logger.info(
            "drain.started", by=self._signalled or self._request.by, reason=self._request.reason,
            deadline=str(self._deadline()), in_progress=len(tracker.running()),
        )  # fmt: skip
        self._report()
        self._hand_back()

    def _undrain(self) -> None:
        """Take work again."""
        self._since = self._drained_at = None
        tracker.refuse(refusing=False)
        periodic.resume()
        self._consuming.open_requests()
        restart_guests.when_open()
        logger.info("drain.withdrawn", in_progress=len(tracker.running()))
        systemd.status("takes work")
        heartbeat.now()
        self._in_cell(lambda: drain_handback.send_again(self._me.host))

    def _look(self) -> None:
        """Check whether anything is left, and whether the deadline is near or over."""
        before, self._left = self._left, self._count()
        if self._left == 0:
            self._drained()
            return
        if self._left != before:
            heartbeat.now()
        if time.monotonic() >= self._next_report:
            self._report()
        left = self._seconds_left()
        if left is None or not self._exits():
            return
        if left <= self._reserve() and not self._handed_over:
            self._hand_over("the shutdown timeout is over")
        if left <= 0:
            self._give_up("the shutdown timeout is over")

    def _drained(self) -> None:
        if self._drained_at is None:
            self._drained_at = timezone.now()
            took = (self._drained_at - (self._since or self._drained_at)).total_seconds()
            logger.info("drain.finished", seconds=round(took, 1), exits=self._exits())
            metrics.DRAIN_SECONDS.labels(self._me.role).observe(took)
            systemd.status("drained")
            heartbeat.now()
        if self._exits():
            self._leave()

    def _leave(self) -> None:
        """Exit with nothing in progress: through Celery's warm shutdown, else by os._exit."""
        systemd.stopping("drained")
        deregister.deregister(self._me, unfinished=0)
        _leaving.set()
        self._consuming.end(0)
        time.sleep(STUCK_AFTER)  # the main thread ends the process meanwhile
        logger.warning("drain.celery_stuck", seconds=STUCK_AFTER)
        os._exit(0)

    def _give_up(self, why: str) -> None:
        """Exit with 1. Unfinished steps are in the journal for recovery: as safe as kill -9, which is safe."""
        if not self._handed_over:
            self._hand_over(why)
        left = len(tracker.running()) + self._waits_left
        logger.warning("drain.aborted", reason=why, unfinished=left)
        systemd.stopping(why)
        deregister.deregister(self._me, unfinished=left)
        os._exit(1)

    # -- what is left

    def _count(self) -> int:
        """Return how many operations need this process: running here, or begun and still in need of this host."""
        running = len(self._works())
        if running or self._me.driver is None:
            return running
        needed = self._in_cell(lambda: drain.needs(self._me.host))
        if needed is not None:
            self._silent_since = 0.0
            return int(needed) or len(self._works())  # a step that was queued a moment ago may run by now
        # Another host may need this one, but it works on the same journal: without that it cannot go on for long.
        # Guests that shut down do go on, and this process has to force them off at their deadlines.
        self._silent_since = self._silent_since or time.monotonic()
        return shutdown_recorder.kept() or int(time.monotonic() - self._silent_since < SILENCE)

    @staticmethod
    def _works() -> list[Work]:
        return [work for work in tracker.running() if work.kind is not Kind.DRAIN_REQUEST]

    def _report(self) -> None:
        """Log everything in progress, a line each."""
        self._next_report = time.monotonic() + REPORT_EVERY
        # While this is repeated systemd waits, also beyond TimeoutStopSec: the deadline may have been moved.
        systemd.extend(3 * REPORT_EVERY, f"draining, {len(tracker.running())} in progress here")
        for work in tracker.running():
            logger.info("drain.waiting", **work.facts())
        for operation in self._in_cell(self._held_by) or ():
            logger.info("drain.waiting", **operation.facts(), seconds_left=operation.seconds_left)

    def _held_by(self) -> list[drain.OpenOperation]:
        return drain.waiting_operations(self._me.host) if self._me.driver is not None else []

    def _hand_back(self) -> None:
        """Give back the queued requests that need not wait for this host."""
        if self._me.driver is not None:
            moved = self._in_cell(lambda: drain_handback.hand_back(self._me.host))
            if moved:
                logger.info("drain.handed_back", steps=moved)

    def _hand_over(self, why: str) -> None:
        """Log and record every unfinished operation; within the reserve, with or without the database."""
        self._handed_over = True
        works = tracker.running()
        for work in works:
            logger.warning("drain.unfinished", **work.facts(), reason=why)
        steps = [work.step_id for work in works if work.step_id is not None]

        def record() -> list[drain.OpenOperation]:
            drain_handback.mark_unfinished(steps, why)
            return [one for one in self._held_by() if one.state == "waiting"]

        waiting = self._in_cell(record) if self._me.role != "scheduler" else ()
        for operation in waiting or ():  # their shutdown timers are kept with the guests, for the next incarnation
            logger.warning("drain.unfinished", **operation.facts(), reason=why)
        self._waits_left = len(waiting or ())

    # -- helpers

    def _exits(self) -> bool:
        return bool(self._signalled) or self._request.then_exit

    def _deadline(self) -> datetime | None:
        return self._signal_deadline if self._signalled else self._request.deadline

    def _seconds_left(self) -> float | None:
        deadline = self._deadline()
        return None if deadline is None else (deadline - timezone.now()).total_seconds()

    def _reserve(self) -> float:
        return float(min(RESERVE, settings.GRACEFUL_SHUTDOWN_TIMEOUT / 10 or RESERVE))

    def _in_cell(self, ask: Any) -> Any:
        """Return what `ask` returns in the cell; None when the database refuses or hangs."""

        def there() -> Any:
            try:
                with target_cell(self._me.alias):
                    return ask()
            except DatabaseError as error:
                logger.warning("drain.database_unavailable", error=repr(error))
                return None

        return deregister.within(DATABASE_SECONDS, there)


def is_leaving() -> bool:
    """Return whether a drain has ended, and the process is to exit."""
    return _leaving.is_set()


def start(me: worker.Worker, consuming: ConsumerHandle) -> Drain:
    """Start the drain thread. In the main thread, once the worker is ready."""
    listening = Drain(me, consuming)
    listening.install()
    listening.start()
    return listening
