"""The log of the fake driver's verb calls, which also applies the injected delays, failures and kills."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from compute.virt.base import Guest, HypervisorUnavailable
from compute.virt.fake.faults import ALWAYS, Fault, Faults, from_properties
from compute.virt.fake.state import StateFile

KEPT = 10_000
HALF_WAY = frozenset({"reboot_hard", "migrate_out", "rescue"})  # these call `die_if_ordered` in their middle
OWN_TIME = frozenset({"migrate_out"})  # verbs that spend the injected delay themselves


class CallLog:
    """Records every call and applies its faults before the verb works. `away`: why every call fails, else ""."""

    def __init__(self, state: StateFile, faults: Faults) -> None:
        self.made: deque[tuple[str, str]] = deque(maxlen=KEPT)
        self.away = ""
        self._state, self._faults = state, faults
        self._closing = threading.Event()

    def end(self) -> None:
        """End all injected delays: the driver is closed."""
        self._closing.set()

    @contextmanager
    def __call__(self, verb: str, uuid: str, guest: Guest | None = None) -> Iterator[Callable[[], None]]:
        """Record the call, then delay, fail or kill as configured.

        Yields a function that kills the process if that is configured; the verbs of HALF_WAY call it in their middle.
        """
        self.made.append((verb, uuid))
        if self.away:
            raise HypervisorUnavailable(self.away)
        order = self._faults.take(verb, uuid)
        asked = from_properties(self._properties(uuid, guest)).verbs.get(verb, Fault())
        failure = order.error if order.fail else None
        if asked.fail and failure is None:
            count = self._state.count_failure(uuid, verb)
            failure = asked.error if asked.fail == ALWAYS or count <= asked.fail else None
        delay = 0.0 if verb in OWN_TIME else max(order.delay, asked.delay)
        if delay and self._closing.wait(delay):
            raise HypervisorUnavailable("the driver was closed meanwhile")
        if failure is not None:
            raise failure(f"{verb} failed as injected")
        die_if_ordered = partial(self._die, self._is_to_die(verb, uuid, order.die, asked.die))
        if verb not in HALF_WAY:
            die_if_ordered()
        yield die_if_ordered

    def seconds(self, verb: str, uuid: str, guest: Guest) -> float:
        """Return the injected delay in seconds, for a verb of OWN_TIME."""
        asked = from_properties(self._properties(uuid, guest)).verbs.get(verb, Fault())
        return max(self._faults.seconds(verb, uuid), asked.delay)

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`. Raises HypervisorUnavailable when the driver is closed meanwhile."""
        if self._closing.wait(seconds):
            raise HypervisorUnavailable("the driver was closed meanwhile")

    def _is_to_die(self, verb: str, uuid: str, any_guest: int, this_guest: int) -> bool:
        """Return whether this call kills the process. The state counts the kills, so that the next process continues.

        Count before the verb begins: the kill rolls back what the verb does in a transaction.
        """
        limits = (("", any_guest), (uuid, this_guest))
        due = [times and self._state.count_failure(whose, f"{verb}.die") <= times for whose, times in limits]
        return any(due)

    @staticmethod
    def _die(due: bool) -> None:
        if due:
            os.kill(os.getpid(), signal.SIGKILL)

    def _properties(self, uuid: str, guest: Guest | None) -> dict[str, str]:
        record = None if guest or not uuid else self._state.find(uuid)
        return dict(guest.image.properties if guest else record.properties if record else {})
