"""The shutdown of machines: Ironic's soft power off, with a deadline of our own.

Ironic locks a node while it waits for a soft power off, and waits longer than it is told. So each request has a short
timeout, and none is made when the deadline is near: Ironic refuses a hard power off while the soft one lasts.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from compute.virt.base import (
    GuestInvalidState,
    GuestNotFound,
    HypervisorUnavailable,
    PowerState,
    ShutdownPreference,
    VirtError,
)
from compute.virt.events import GuestNotifier, wait_for
from compute.virt.ironic.api import PATIENCE, Busy, Ironic
from compute.virt.ironic.node import Node
from compute.virt.ironic.state_files import StateFiles
from compute.virt.shutdown import ShutdownDriver
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.wakeable_thread import WakeableThread

LOOK_SECONDS = 1.0  # between two polls of the servers being shut down; one request for all of them
SIGNAL_PATIENCE = 1.5  # seconds a signal may take
POWER_SECONDS = 120.0  # until a machine has gone on or off after the request
LAST_SIGNAL = 15.0  # seconds before the deadline: no further signal, because it would lock the node
ASK_SECONDS = 10  # soft power off timeout of a signal without a timer


class IronicShutdown(ShutdownDriver):
    """The shutdown verbs."""

    _ironic: Ironic
    _state_files: StateFiles
    _notifier: GuestNotifier
    _poller: PowerPoller

    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        """Return {}: the machines stay on when this worker's own machine goes down."""
        return {}

    def force_off(self, uuid: str) -> None:
        node = self._ironic.node_of(uuid)
        if node is not None:
            self._switch(node, on=False)
            self._notifier.notify(uuid)

    def timer(self, uuid: str) -> ShutdownTimer | None:
        timer = self._state_files.timer(uuid)
        if timer is None or timer.runs or timer.how == "left":
            return timer
        node = self._ironic.node_of(uuid)
        return None if node is None or node.power_state is PowerState.RUNNING else timer

    def save_timer(self, uuid: str, timer: ShutdownTimer) -> None:
        if self._ironic.node_of(uuid) is None:
            self._state_files.forget(uuid)
            raise GuestNotFound(f"no node has server {uuid}")
        self._state_files.save_timer(uuid, timer)
        self._poller.wake()

    def timers(self) -> dict[str, ShutdownTimer]:
        return self._state_files.timers()

    def how_ended(self, uuid: str) -> str:
        """Return "" for a known server: Ironic does not know; a power cut of ours is in the timer.

        Raises VirtError while the machine's power state is unknown.
        """
        node = self._ironic.node_of(uuid)
        if node is None:
            return "gone"
        node.must_not_be_maintained()
        if node.power_state is PowerState.NOSTATE:
            raise HypervisorUnavailable(f"Ironic does not know whether node {node.id} is on")
        return ""

    def on_change(self, look: Callable[[str], None]) -> None:
        self._notifier.tell(look)
        self._poller.start()

    def signal_shutdown(self, uuid: str) -> str:
        node = self._here(uuid)
        node.must_not_be_maintained()
        if node.power_state is not PowerState.RUNNING:
            raise GuestInvalidState(f"server {uuid} is {node.power_state.name}, not running")
        timer = self._state_files.timer(uuid)
        seconds = ASK_SECONDS
        if timer is not None and timer.runs:
            seconds = max(1, int(min(timer.interval, timer.left(timer.now())) / 2))
        self._ironic.power(node.id, "soft power off", seconds, patience=SIGNAL_PATIENCE)
        return "acpi"

    def wait_until_off(self, uuid: str, seconds: float) -> bool:
        def is_off() -> bool:
            node = self._ironic.node_of(uuid)
            return node is None or node.power_state is PowerState.SHUTDOWN

        def is_off_or_away() -> bool:
            with suppress(HypervisorUnavailable):  # no answer: poll again
                return is_off()
            return False

        with self._notifier.listening(uuid) as bell:
            return wait_for(bell, is_off_or_away, seconds, LOOK_SECONDS) or is_off()

    def _signal(self, uuid: str, timer: ShutdownTimer, now: float) -> ShutdownTimer:
        """Skip a signal while Ironic waits for the last one, or if it is not the first and the deadline is near."""
        if timer.signals and timer.left(now) < LAST_SIGNAL:
            return self._noted(uuid, replace(timer, signalled=now))
        try:
            return super()._signal(uuid, timer, now)
        except Busy:
            return self._noted(uuid, replace(timer, signalled=now))

    def _switch(self, node: Node, *, on: bool, patience: float = PATIENCE) -> None:
        """Power the machine on or off and wait for it. In that state already is success.

        `patience`: seconds the node may be locked. Raises InMaintenance, Busy, OperationTimedOut. The request is made
        whatever state Ironic has on record: the record may be a minute old, and Ironic reads the real state before it
        acts.
        """
        node.must_not_be_maintained()
        self._ironic.power(node.id, "power on" if on else "power off", patience=patience)
        node = self._settled(node.id, time.monotonic() + POWER_SECONDS)
        node.must_not_be_maintained()
        if node.power_state is not (PowerState.RUNNING if on else PowerState.SHUTDOWN):
            raise VirtError(f"node {node.id} did not go {'on' if on else 'off'}: {node.error or node.power}")

    def _settled(self, node: str, until: float) -> Node:
        """Return the node as soon as Ironic has finished with it."""
        return self._ironic.until(lambda: self._ironic.node(node), lambda one: not one.is_busy, until)

    @abstractmethod
    def _here(self, uuid: str) -> Node:
        """Implemented by the driver."""


class PowerPoller:
    """Polls, while shutdowns run, which of their servers are off: Ironic sends this worker no events."""

    def __init__(self, ironic: Ironic, state_files: StateFiles, notifier: GuestNotifier) -> None:
        self._ironic, self._state_files, self._notifier = ironic, state_files, notifier
        self._rounds = WakeableThread("ironic-power-poller", self._look)

    def start(self) -> None:
        """Start polling; called with the first listener."""
        self._rounds.start()

    def wake(self) -> None:
        """Poll now: a timer was stored."""
        self._rounds.wake()

    def close(self) -> None:
        """Stop polling."""
        self._rounds.close()

    def _look(self) -> float | None:
        running = self._state_files.timers()
        with suppress(VirtError):  # the shutdown watcher turns the timers anyway, if less often
            for server in self._off(running) if running else ():
                self._notifier.notify(server)
        return LOOK_SECONDS if running else None

    def _off(self, running: dict[str, ShutdownTimer]) -> list[str]:
        states = {node.server: node.power_state for node in self._ironic.servers()}
        return [server for server in running if states.get(server) in (None, PowerState.SHUTDOWN)]
