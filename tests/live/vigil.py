"""Watches real guests from outside, so that nobody has to believe the records.

with Vigil(cloud) as vigil:
    vigil.watch(uuid, host)
    vigil[uuid].pressed    when it heard its power button, as it says on its console
    vigil[uuid].gone       when its QEMU had ended; 0 while it runs
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO

from cloud.processes import alive
from tests.live.cloud import Cloud

EVERY = 0.04  # seconds
READY, PRESSED = b"STILLWATER READY", b"STILLWATER POWERBTN"


@dataclass
class Guest:
    """One life of one guest. Times are seconds since 1970."""

    pid: int
    console: BinaryIO  # open, since a delete removes the file before its last words are read
    ready: float = 0.0
    pressed: list[float] = field(default_factory=list)
    gone: float = 0.0

    @property
    def lasted(self) -> float:
        """From the first signal it heard until it was off."""
        return self.gone - self.pressed[0]


class Vigil:
    """A thread that looks at every guest 25 times a second."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._guests: dict[str, Guest] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vigil", daemon=True)

    def __enter__(self) -> Vigil:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for guest in self._guests.values():
            guest.console.close()

    def __getitem__(self, uuid: str) -> Guest:
        return self._guests[uuid]

    def watch(self, uuid: str, host: str) -> None:
        """From now on; it runs there. Raises ValueError if it does not."""
        (pid,) = [pid for pid in self._cloud.libvirtd(host).qemu_pids() if alive(pid, uuid)]
        console = self._cloud.state.path("hosts", host, "state", "guests", uuid, "console.log")
        self._guests[uuid] = Guest(pid, console.open("rb"))

    def all_gone(self) -> bool:
        """Whether none of them runs any more."""
        return all(guest.gone for guest in self._guests.values())

    def _run(self) -> None:
        while not self._over.wait(EVERY):
            for uuid, guest in list(self._guests.items()):
                if not guest.gone:
                    _look(uuid, guest)


def _look(uuid: str, guest: Guest) -> None:
    lives = alive(guest.pid, uuid)  # before its last words, which are read in any case
    guest.console.seek(0)
    said = guest.console.read()
    now = time.time()
    if READY in said and not guest.ready:
        guest.ready = now
    guest.pressed += [now] * (said.count(PRESSED) - len(guest.pressed))
    if not lives:
        guest.gone = now
