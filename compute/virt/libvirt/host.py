"""The connection to a libvirt daemon, which is opened again whenever it is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import libvirt

from compute.virt.base import HypervisorUnavailable
from compute.virt.libvirt.errors import kind_of, translated
from compute.virt.libvirt.guest import LibvirtGuest

log = logging.getLogger(__name__)

# One keepalive a second: while one call hangs, libvirt 9.0 was seen to leave the answer of another call unread until
# the connection is next used; with a keepalive every five seconds, a call took up to five. 15 s of silence is a loss.
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 1, 15
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
FIRST_OPEN_SECONDS = 15
CLOSE_SECONDS = 5

_loop_lock = threading.Lock()
_loop_pid = 0


def _run_event_loop() -> None:
    """Start the process's event loop, for events and keepalives; it must be registered before the first open."""
    global _loop_pid
    with _loop_lock:
        if _loop_pid == os.getpid():
            return
        libvirt.registerErrorHandler(lambda *_: None, None)  # without one libvirt prints to stderr
        libvirt.virEventRegisterDefaultImpl()

        def loop() -> None:
            while True:
                try:
                    libvirt.virEventRunDefaultImpl()
                except libvirt.libvirtError:
                    log.exception("libvirt.event_loop_failed")

        threading.Thread(target=loop, name="libvirt-events", daemon=True).start()
        _loop_pid = os.getpid()


class Host:
    """The connection to one daemon, kept up by a thread.

    While the daemon is away every call raises HypervisorUnavailable at once; waiting is up to the caller.
    `on_event(uuid, event, detail)` runs in libvirt's event thread and must not block. `on_back()` runs after each new
    connection, because events may have been missed.
    """

    def __init__(
        self,
        uri: str,
        on_event: Callable[[str, int, int], None],
        on_back: Callable[[], None],
    ) -> None:
        self.uri = uri
        self._on_event, self._on_back = on_event, on_back
        self._changed = threading.Condition()
        self._connection: libvirt.virConnect | None = None
        self._reason = "not connected yet"
        self._attempts = 0
        self._watcher: threading.Thread | None = None
        self._closing = False

    @property
    def connection(self) -> libvirt.virConnect:
        """The open connection; the first use connects, for up to FIRST_OPEN_SECONDS. Raises HypervisorUnavailable."""
        with self._changed:
            self._start_watcher()
            deadline = monotonic() + FIRST_OPEN_SECONDS
            while not self._attempts and monotonic() < deadline:
                self._changed.wait(deadline - monotonic())
            if self._connection is None:
                raise HypervisorUnavailable(f"{self.uri}: {self._reason}")
            return self._connection

    def guest(self, uuid: str) -> LibvirtGuest:
        """Return the guest with this UUID. Raises GuestNotFound."""
        with translated():
            try:
                return LibvirtGuest(self.connection.lookupByUUIDString(uuid))
            except libvirt.libvirtError as error:
                if error.get_error_code() is not None:
                    raise
            # Seen under load: the lookup fails without an error code. It changes nothing, so repeat it once.
            return LibvirtGuest(self.connection.lookupByUUIDString(uuid))

    def another(self) -> libvirt.virConnect:
        """Open a second connection, for a long call that would block others. Raises libvirt's own errors."""
        self.connection  # noqa: B018 - starts the event loop, and raises at once when the daemon is away
        connection = libvirt.open(self.uri)
        connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
        return connection

    def close(self) -> None:
        """Disconnect for good."""
        with self._changed:
            self._closing = True
            self._connection = None
            self._reason = "closed"
            self._attempts += 1
            self._changed.notify_all()
            watcher = self._watcher
        if watcher is not None:
            watcher.join(CLOSE_SECONDS)  # the thread closes the connection

    def _start_watcher(self) -> None:
        if self._watcher is None and not self._closing:
            _run_event_loop()
            self._watcher = threading.Thread(target=self._keep, name="libvirt-reconnect", daemon=True)
            self._watcher.start()

    def _keep(self) -> None:
        """Connect, sleep until the connection is lost, and repeat, with growing pauses after failures."""
        pause = FIRST_PAUSE
        while not self._closing:
            connection = self._connect()
            if connection is not None:
                pause = FIRST_PAUSE
                self._on_back()
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._connection is None)
                _close_quietly(connection)
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _connect(self) -> libvirt.virConnect | None:
        connection, reason, gone = None, "", threading.Event()
        try:
            connection = libvirt.open(self.uri)
            self._listen(connection, gone)
        except libvirt.libvirtError as error:
            log.warning("libvirt.unavailable uri=%s kind=%s", self.uri, kind_of(error).__name__)
            reason = str(error)
        with self._changed:
            usable = connection is not None and not reason and not gone.is_set()
            if usable and not self._closing:
                self._connection = connection
            self._reason = reason or self._reason
            self._attempts += 1
            self._changed.notify_all()
        if connection is not None and not usable:
            _close_quietly(connection)
        return connection if usable else None

    def _listen(self, connection: libvirt.virConnect, gone: threading.Event) -> None:
        connection.registerCloseCallback(self._lost, gone)
        try:
            connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
        except libvirt.libvirtError:  # test:///default has no keepalive
            log.debug("libvirt.keepalive_unsupported uri=%s", self.uri)
        connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle, None
        )

    def _lifecycle(
        self, _: libvirt.virConnect, domain: libvirt.virDomain, event: int, detail: int, __: object
    ) -> None:
        self._on_event(domain.UUIDString(), event, detail)

    def _lost(self, connection: libvirt.virConnect, reason: int, gone: threading.Event) -> None:
        """Handle the loss of the connection; called by libvirt's event thread."""
        log.warning("libvirt.lost uri=%s reason=%s", self.uri, reason)
        with self._changed:
            gone.set()  # the loss may come before `_connect` has stored the connection
            if self._connection is connection:
                self._connection = None
                self._reason = "the daemon closed the connection"
            self._changed.notify_all()


def _close_quietly(connection: libvirt.virConnect) -> None:
    """Close, ignoring errors of a dead connection. Without unregistering, the callback keeps it in memory for ever."""
    for step in (connection.unregisterCloseCallback, connection.close):
        with suppress(libvirt.libvirtError):
            step()
