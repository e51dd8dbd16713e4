"""The shutdown watcher of this host's guests, and the recorder that copies their shutdown timers to the journal.

The watcher needs the hypervisor only. What it sees goes to the steps that wait for it as soon as the cell's database
answers.
"""

from __future__ import annotations

import threading
import time

from django.db import DatabaseError, close_old_connections, connections

from cells.context import target_cell
from cloud import log, metrics
from compute.models import Step
from compute.operations import journal
from compute.shutdown import grace
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher
from tasks import worker

logger = log.get(__name__)
AGAIN = 1.0  # seconds until a database that does not answer is asked again
MOST = 1000  # shutdowns remembered


class ShutdownRecorder:
    """A thread that records shutdown timers: of each guest only the newest one, ended timers first."""

    def __init__(self, me: worker.Worker) -> None:
        self._me = me
        self._changed = threading.Condition()
        self._going_on: dict[str, ShutdownTimer] = {}
        self._over: dict[str, ShutdownTimer] = {}
        self._ends = ShutdownCounter()
        self._closing = False
        self._is_away = False
        threading.Thread(target=self._run, name="shutdown-recorder", daemon=True).start()

    def hear(self, server_id: str, timer: ShutdownTimer) -> None:
        """Have a timer recorded soon. Does not block."""
        with self._changed:
            self._going_on.pop(server_id, None)
            (self._going_on if timer.runs else self._over)[server_id] = timer
            self._changed.notify_all()

    def close(self) -> None:
        """Stop. Timers that are not recorded yet are kept with the guests."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (word := self._next()) is not None:
            if not self._write(*word):
                self._put_back(*word)
        connections.close_all()  # this thread's own

    def _next(self) -> tuple[str, ShutdownTimer] | None:
        """Return the oldest timer to record; None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._going_on or self._closing)
            if self._closing:
                return None
            words = self._over or self._going_on
            server_id = next(iter(words))
            return server_id, words.pop(server_id)

    def _write(self, server_id: str, timer: ShutdownTimer) -> bool:
        """Record a timer; return False when it has to be tried again."""
        try:
            close_old_connections()
            with target_cell(self._me.alias):
                waited = journal.record_timer(self._me.host, server_id, timer)
            self._ends.count(server_id, timer, waited)
        except DatabaseError as error:
            if not self._is_away:
                logger.warning("shutdown_recorder.database_unavailable", error=repr(error))
            self._is_away = True
            return False
        except Exception:  # of one guest; the step that waits for it looks by itself after its deadline
            logger.exception("shutdown_recorder.write_failed", server=server_id)
            return True
        self._is_away = False
        return True

    def _put_back(self, server_id: str, timer: ShutdownTimer) -> None:
        """Put a timer behind the others, unless there is a newer one; then pause."""
        with self._changed:
            words = self._going_on if timer.runs else self._over
            if server_id not in words and not (timer.runs and server_id in self._over):
                words[server_id] = timer
            self._changed.wait_for(lambda: self._closing, AGAIN)


_posts: list[tuple[ShutdownWatcher, ShutdownRecorder]] = []


def start(me: worker.Worker) -> None:
    """Start watcher and recorder: from now on steps wait without a thread.

    Shutdown timers of earlier incarnations go on, with or without the database.
    """
    if me.driver is None:
        return
    recorder = ShutdownRecorder(me)
    watcher = ShutdownWatcher(me.driver, recorder.hear)
    _posts.append((watcher, recorder))
    grace.set_watcher(watcher)
    watcher.start()


def look_after_waiting(me: worker.Worker) -> int:
    """Have the watcher recheck the guests that steps of an earlier incarnation wait for; return how many."""
    waiting = Step.objects.filter(host=me.host, state=Step.State.WAITING)
    servers = set(waiting.values_list("server_id", flat=True))
    for server_id in servers:
        grace.recheck(server_id)
    return len(servers)


def kept() -> int:
    """Return how many shutdown timers run here, without asking the hypervisor or the database."""
    return sum(len(watcher.minded()) for watcher, _ in _posts)


def stop() -> None:
    """Stop watcher and recorder, before the driver is closed."""
    grace.set_watcher(None)
    while _posts:
        watcher, recorder = _posts.pop()
        watcher.close()
        recorder.close()


class ShutdownCounter:
    """Counts each guest shutdown once in the metrics of this process.

    A shutdown that ended before the process started counts only if a step still waits for it.
    """

    def __init__(self) -> None:
        self._born = time.time()
        self._counted: dict[tuple[str, float], None] = {}

    def count(self, server_id: str, timer: ShutdownTimer, waited: int) -> bool:
        """Count and log a shutdown that has ended; return False when it was counted, or is not to be."""
        key = (server_id, timer.begun)
        if timer.runs or key in self._counted or not (waited or timer.ended >= self._born):
            return False
        self._counted[key] = None
        if len(self._counted) > MOST:
            del self._counted[next(iter(self._counted))]
        seconds = timer.ended - timer.begun
        if timer.how == "forced":
            metrics.GUESTS_FORCED_OFF.labels(timer.cause).inc()
        if timer.deadline > timer.begun:  # the others had no grace period
            metrics.GUEST_SHUTDOWN_SECONDS.labels(timer.how).observe(seconds)
        logger.info("shutdown.finished", server=server_id, how=timer.how, signals=timer.signals,
                    seconds=round(seconds, 1))  # fmt: skip
        return True
