"""Machines that are shut down: asked by Ironic's soft power off, with a deadline that is ours.

Ironic locks a node while it waits for it, and waits longer than it is told. So it is asked for little at a time, and
no more when the deadline is near, for a hard power off is refused as long as the soft one lasts.
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

LOOK_SECONDS = 1.0  # between looks at servers that are being shut down; one request for all of them
SIGNAL_PATIENCE = 1.5  # seconds a signal may take
POWER_SECONDS = 120.0  # until a machine that was told to go on or off has done so
LAST_SIGNAL = 15.0  # seconds before the deadline from which on Ironic is asked for nothing that locks the node
ASK_SECONDS = 10  # of whoever signals without a clock


class IronicShutdown(ShutdownDriver):
    """The verbs of a shutdown."""

    _ironic: Ironic
    _state_files: StateFiles
    _notifier: GuestNotifier
    _poller: PowerPoller

    def shutdown_preferences(self) -> dict[str, ShutdownPreference]:
        """None: the machines stay on when the one that this worker runs on goes down."""
        return {}

    def force_off(self, uuid: str) -> None:
        node = self._ironic.node_of(uuid)
        if node is not None:
            self._switch(node, on=False)
            self._notifier.ring(uuid)

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
        """Ironic does not know; who forced it off has said so before. Raises VirtError while it may be on."""
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
            with suppress(HypervisorUnavailable):  # no answer: it is asked again
                return is_off()
            return False

        with self._notifier.listening(uuid) as bell:
            return wait_for(bell, is_off_or_away, seconds, LOOK_SECONDS) or is_off()

    def _signal(self, uuid: str, timer: ShutdownTimer, now: float) -> ShutdownTimer:
        """A node that Ironic still waits for was signalled; near the deadline the lock would be in the way."""
        if timer.signals and timer.left(now) < LAST_SIGNAL:
            return self._noted(uuid, replace(timer, signalled=now))
        try:
            return super()._signal(uuid, timer, now)
        except Busy:
            return self._noted(uuid, replace(timer, signalled=now))

    def _switch(self, node: Node, *, on: bool, patience: float = PATIENCE) -> None:
        """On, or off, when this returns; so already is success. Raises InMaintenance, Busy, OperationTimedOut.

        `patience`: for how many seconds a node may be locked.

        Ironic is told whatever it has on record, for that may be a minute old; it looks itself before it acts.
        """
        node.must_not_be_maintained()
        self._ironic.power(node.id, "power on" if on else "power off", patience=patience)
        node = self._settled(node.id, time.monotonic() + POWER_SECONDS)
        node.must_not_be_maintained()
        if node.power_state is not (PowerState.RUNNING if on else PowerState.SHUTDOWN):
            raise VirtError(f"node {node.id} did not go {'on' if on else 'off'}: {node.error or node.power}")

    def _settled(self, node: str, until: float) -> Node:
        """As soon as Ironic lets go of it."""
        return self._ironic.until(lambda: self._ironic.node(node), lambda one: not one.is_busy, until)

    @abstractmethod
    def _here(self, uuid: str) -> Node:
        """The driver's own."""


class PowerPoller:
    """Sees which of those that are being shut down went off. Ironic tells nobody, so it is asked, but only then."""

    def __init__(self, ironic: Ironic, state_files: StateFiles, notifier: GuestNotifier) -> None:
        self._ironic, self._state_files, self._notifier = ironic, state_files, notifier
        self._rounds = WakeableThread("ironic-lookout", self._look)

    def start(self) -> None:
        """From when somebody wants to know it."""
        self._rounds.start()

    def wake(self) -> None:
        """A clock was kept."""
        self._rounds.wake()

    def close(self) -> None:
        """Look no more."""
        self._rounds.close()

    def _look(self) -> float | None:
        running = self._state_files.timers()
        with suppress(VirtError):  # the keeper looks for itself, if less often
            for server in self._off(running) if running else ():
                self._notifier.ring(server)
        return LOOK_SECONDS if running else None

    def _off(self, running: dict[str, ShutdownTimer]) -> list[str]:
        states = {node.server: node.power_state for node in self._ironic.servers()}
        return [server for server in running if states.get(server) in (None, PowerState.SHUTDOWN)]
