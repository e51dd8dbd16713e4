"""The drain of an API process: it finishes the requests in progress and ends at once afterwards.

New requests are refused with 503 where no other process accepts (`refuse`), and left to the processes that accept on
the same socket otherwise (`hand over`). Open connections have `LINGER` seconds for a request that may be on its way;
its answer says `Connection: close`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn

from django.conf import settings

from cloud import log
from cloud.serving import master

if TYPE_CHECKING:
    from cloud.serving.in_flight import InFlight
    from cloud.serving.worker import Worker

LINGER = 1.0
REFUSING_THREADS = 4  # the threads of the worker may all be busy
HEAD_SECONDS = 5.0  # for the rest of a head that a client has begun to send
TURN_SECONDS, REPORT_SECONDS = 0.1, 10.0
logger = log.get(__name__)


class Drain:
    """The drain of a worker, from SIGTERM to the end of the process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.started = time.monotonic()
        self.deadline = self.started + (settings.GRACEFUL_SHUTDOWN_TIMEOUT or math.inf)
        self.report_at = self.started
        self.finished = self.refused = 0
        worker.refusing = master.no_successor(worker)
        if worker.refusing:  # the other pool ends when its threads have done what they have
            worker.tpool = ThreadPoolExecutor(REFUSING_THREADS)

    def run(self) -> NoReturn:
        """End the process when no request is in progress, at the latest at the timeout."""
        worker = self.worker
        mode = "refuse" if worker.refusing else "hand over"
        logger.info("api.draining", in_progress=len(self._waits_for()), new_requests=mode,
                    timeout=settings.GRACEFUL_SHUTDOWN_TIMEOUT)  # fmt: skip
        self._close_idle_soon()
        worker.set_accept_enabled(worker.refusing)
        if not worker.refusing:
            self._close_listeners()
        while not self._haste() and (worker.nr_conns or worker.sockets):
            self._turn()
        if reason := self._haste():
            self._cut(reason)
        logger.info("api.drained", seconds=self._seconds(), finished=self.finished, refused=self.refused)
        _leave(0)

    def ended(self, flight: InFlight) -> None:
        """Count a request that has its answer; its connection may be idle now."""
        self.refused += flight.refused
        if flight.method and not flight.late:
            self.finished += 1
            logger.info("api.request_ended", **flight.facts())
        self._close_idle_soon()

    def _turn(self) -> None:
        worker, now = self.worker, time.monotonic()
        waits_for = self._waits_for()
        if now >= self.report_at:
            self.report_at = now + REPORT_SECONDS
            for flight in waits_for:
                logger.info("api.request_waits", **flight.facts())
        if worker.sockets and not waits_for and (not worker.nr_conns or now > self.started + LINGER):
            self._stop_accepting()
        worker.turn(TURN_SECONDS)
        for conn, flight in worker.flights.items():
            if flight.unread_for() > HEAD_SECONDS:
                with contextlib.suppress(OSError):
                    conn.sock.shutdown(socket.SHUT_RDWR)

    def _waits_for(self) -> list[InFlight]:
        return [flight for flight in self.worker.flights.values() if flight.in_progress]

    def _close_idle_soon(self) -> None:
        soon = time.monotonic() + LINGER
        for conn in (*self.worker.keepalived_conns, *self.worker.pending_conns):
            conn.timeout = min(conn.timeout, soon)

    def _stop_accepting(self) -> None:
        """Accept the connections in the queues, then close the sockets: Linux resets what a closed queue holds."""
        worker = self.worker
        worker.set_accept_enabled(False)
        for _ in range(worker.cfg.backlog):
            ready = select.select(worker.sockets, [], [], 0)[0]
            if not ready:
                break
            for listener in ready:
                worker.accept(listener)
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self.worker.sockets:
            listener.close()
        self.worker.sockets = []

    def _haste(self) -> str:
        if self.worker.hurried:
            return "told to end now"
        return "GRACEFUL_SHUTDOWN_TIMEOUT is over" if time.monotonic() >= self.deadline else ""

    def _cut(self, reason: str) -> NoReturn:
        cut = self._waits_for()
        for flight in cut:
            logger.warning("api.request_cut", reason=reason, **flight.facts())
        logger.warning("api.cut_short", reason=reason, seconds=self._seconds(), cut=len(cut),
                       finished=self.finished, refused=self.refused)  # fmt: skip
        master.was_cut()
        _leave(1)

    def _seconds(self) -> float:
        return round(time.monotonic() - self.started, 1)


def _leave(code: int) -> NoReturn:
    """Exit now. Python would wait for every thread, even for one that asks a cell that hangs."""
    logging.shutdown()
    os._exit(code)
