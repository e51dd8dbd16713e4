"""The API's worker: gunicorn's threads, with a stop that loses no request.

This file and `drain.py` hold all uses of undocumented parts of gunicorn, which is pinned for them in requirements.in.
A connection gets a thread when its first byte is there, so that idle connections hold up no request.
"""

from __future__ import annotations

import selectors
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakSet

from django.conf import settings
from gunicorn.http import get_parser
from gunicorn.sock import ssl_context, ssl_wrap_socket
from gunicorn.util import close_graceful
from gunicorn.workers.gthread import TConn, ThreadWorker

from cloud import log, systemd
from cloud.serving import master
from cloud.serving.drain import LINGER, Drain
from cloud.serving.in_flight import FLIGHT, InFlight

logger = log.get(__name__)
HANDSHAKE_SECONDS = 5.0  # as long as a drain waits for the rest of a head
GREETED = object()  # the result of a thread that has made a handshake


class Worker(ThreadWorker):
    """One process of the API. Its main thread runs all but `handle`, `handle_request` and the application."""

    wsgi: Callable[..., Iterable[bytes]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flights: dict[TConn, InFlight] = {}
        self._in_time: WeakSet[TConn] = WeakSet()  # their handshake began before SIGTERM: their request is not late
        self.refusing = False
        self.hurried = False
        self.leaving = threading.Event()  # set when the drain begins
        self.drain: Drain | None = None
        self._interrupts = 0
        self._here = threading.local()

    def init_signals(self) -> None:
        """Set this process's handlers, then handle the signals that came before."""
        super().init_signals()
        signal.signal(signal.SIGINT, self.handle_interrupt)
        signal.siginterrupt(signal.SIGINT, False)  # noqa: FBT003  it takes no keywords
        for sig in master.early:
            (self.handle_quit if sig == signal.SIGQUIT else self.handle_exit)(sig, None)

    def handle_interrupt(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT: a terminal sends it to all processes of the group; the master's SIGTERM follows."""
        self._interrupts += 1
        (self.handle_exit if self._interrupts == 1 else self.handle_quit)(sig, frame)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGQUIT: end now. Wakes the main loop, which does it."""
        self.alive, self.hurried = False, True
        self.method_queue.defer(lambda: None)

    def load_wsgi(self) -> None:
        """Load the application; its requests know their InFlight, and close their connection during a stop."""
        super().load_wsgi()
        application = self.wsgi

        def tracked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            environ[FLIGHT] = self._here.flight
            response = start_response.__self__  # type: ignore[attr-defined]

            def start(*args: Any) -> Any:
                if not self.alive:
                    response.force_close()
                return start_response(*args)

            return application(environ, start)

        self.wsgi = tracked

    def run(self) -> None:
        """Serve until SIGTERM, then drain."""
        self.poller.register(self.method_queue.fileno(), selectors.EVENT_READ, self.method_queue.run_callbacks)
        if self.cfg.is_ssl:  # now, so that half a renewal finds a certificate that works
            with suppress(OSError):  # logged as tls.fault
                ssl_context(self.cfg)
        self.set_accept_enabled(True)
        logger.info("api.accepting", pid=self.pid)
        systemd.warn_if_impatient(settings.GRACEFUL_SHUTDOWN_TIMEOUT)
        while self.alive and self.is_parent_alive():
            self.set_accept_enabled(self.nr_conns < self.worker_connections)
            self.turn(1.0)
        self.alive = False
        self.leaving.set()
        self.drain = Drain(self)
        self.drain.run()

    def turn(self, seconds: float) -> None:
        """Run the main loop once: handle what came in, and close connections that were silent for too long."""
        self.notify()
        self.wait_for_and_dispatch_events(seconds)
        self.murder_keepalived()
        self.murder_pending()

    def enqueue_req(self, conn: TConn) -> None:
        """Give the connection a thread, or wait for its first byte."""
        if not (conn.initialized or conn.data_ready):
            self._await_first_byte(conn)
            return
        self.flights[conn] = InFlight(late=self.refusing and conn not in self._in_time)
        self._in_time.discard(conn)
        job = self.tpool.submit(self.handle, conn)
        job.add_done_callback(lambda job: self.method_queue.defer(self.finish_request, conn, job))

    def _await_first_byte(self, conn: TConn) -> None:
        conn.sock.settimeout(0.0)
        conn.timeout = time.monotonic() + (self.cfg.keepalive if self.alive else LINGER)
        self.pending_conns.append(conn)
        ready = partial(self.on_pending_socket_readable, conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, ready)

    def handle(self, conn: TConn) -> Any:
        """Handle one request, in a thread; return whether its connection may bring another.

        With TLS its first turn is the handshake: the connection then waits for a request without a thread, too.
        """
        flight = self._here.flight = self.flights[conn]
        flight.read_since = time.monotonic()
        keep = super().handle(conn) if conn.initialized or not self.cfg.is_ssl else self._shake_hands(conn)
        flight.answered = True
        if not keep:  # here, because gunicorn's wait for the client's end would stop its main loop
            _end_tls(conn)
            close_graceful(conn.sock, LINGER, max_drain=sys.maxsize)
        return keep

    def _shake_hands(self, conn: TConn) -> Any:
        """Do what gunicorn's `TConn.init` does, with a time limit."""
        try:
            conn.sock.settimeout(HANDSHAKE_SECONDS)
            conn.sock = ssl_wrap_socket(conn.sock, self.cfg)
            conn.sock.do_handshake()
        except OSError as error:
            logger.info("api.handshake_failed", client=str(conn.client), error=str(error))
            return False
        conn.parser = get_parser(self.cfg, conn.sock, conn.client)
        conn.initialized = True
        return GREETED

    def handle_request(self, req: Any, conn: TConn) -> Any:
        """Record the method and the path, then answer; the head of the request was read."""
        flight = self._here.flight
        flight.path, flight.method = req.path, req.method
        return super().handle_request(req, conn)

    def finish_request(self, conn: TConn, job: Future[Any]) -> None:
        """Release the connection that a thread has finished."""
        flight = self.flights.pop(conn)
        if conn.sock.fileno() < 0:
            self.nr_conns -= 1
        elif _is_greeted(job):
            if not flight.late:
                self._in_time.add(conn)
            self._await_first_byte(conn)
        else:
            super().finish_request(conn, job)
        if self.drain:
            self.drain.ended(flight)


def _is_greeted(job: Future[Any]) -> bool:
    return not job.cancelled() and job.exception() is None and job.result() is GREETED


def _end_tls(conn: TConn) -> None:
    """Send the alert without which a client cannot know that an answer was not cut off (RFC 8446, section 6.1)."""
    if isinstance(conn.sock, ssl.SSLSocket):
        with suppress(OSError, ValueError):  # the client's own alert, which nothing waits for, is an SSLWantReadError
            conn.sock.settimeout(0.0)
            conn.sock.unwrap()
