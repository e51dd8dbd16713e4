"""The brokers: messages arrive once, twice, late, out of order or never, as the current faults say."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.kernel import Simulation


class BrokerAway(OSError):
    """The broker does not answer."""


@dataclass(slots=True)
class Message:
    """A message that wakes a worker."""

    queue: str
    name: str
    kwargs: dict[str, Any]


@dataclass
class Wire:
    """All brokers, by their URLs. `away`, `lost`, `doubled` and `slow` are the current faults."""

    sim: Simulation
    dice: Random
    deliver: Callable[[str, Message], bool]  # to a process that consumes the queue; False: none does, or all are busy
    away: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # virtual time until which it is away
    lost: float = 0.0  # share of messages
    doubled: float = 0.0
    slow: float = 0.0  # seconds at most
    waiting: dict[tuple[str, str], deque[Message]] = field(default_factory=lambda: defaultdict(deque))

    def put(self) -> None:
        """Replace the real brokers."""
        from cells import brokers
        from compute.operations import dispatch

        brokers._pooled = self._pooled  # type: ignore[assignment]
        brokers._probe = self._probe  # type: ignore[assignment]
        dispatch.app.send_task = self._send  # type: ignore[method-assign]

    @contextmanager
    def _pooled(self, url: str) -> Iterator[str]:
        self.sim.point("broker", url)
        if self.away[url] > self.sim.now:
            self.sim.sleep(self.dice.choice((0.01, 1.0, 5.0)))
            raise BrokerAway(url)
        yield url

    def _probe(self, url: str) -> None:
        self.sim.point("probe", url)
        if self.away[url] > self.sim.now:
            raise BrokerAway(url)

    def _send(self, name: str, *, kwargs: dict[str, Any], producer: str, queue: Any, **_: Any) -> None:
        self.sim.point("send", f"{queue.name} {name} {kwargs}")
        if self.away[producer] > self.sim.now:
            raise BrokerAway(producer)
        message = Message(queue.name, name, dict(kwargs))
        if self.dice.random() < self.lost:
            self.sim.say("lost on the wire")
            return
        for _again in range(1 + (self.dice.random() < self.doubled)):
            late = 0.002 + self.dice.random() * (0.05 + self.slow)
            self.sim.at(self.sim.now + late, lambda: self._arrive(producer, message))

    def _arrive(self, url: str, message: Message) -> None:
        self.waiting[url, message.queue].append(message)
        self.push(url, message.queue)

    def push(self, url: str, queue: str) -> None:
        """Deliver the waiting messages of a queue while a process takes them."""
        waiting = self.waiting[url, queue]
        while waiting and self.away[url] <= self.sim.now and self.deliver(url, waiting[0]):
            waiting.popleft()

    def push_all(self) -> None:
        """Do the same for every queue."""
        for url, queue in list(self.waiting):
            self.push(url, queue)

    def wipe(self) -> None:
        """Drop all waiting messages, as a restarted broker without a disk does."""
        self.waiting.clear()
