"""The brokers: messages that arrive once, twice, late, in another order or never, as the story has it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulation.kernel import Simulation


class BrokerAway(OSError):
    """Nobody answers there."""


@dataclass(slots=True)
class Message:
    """What a worker is woken by."""

    queue: str
    name: str
    kwargs: dict[str, Any]


@dataclass
class Wire:
    """All brokers, by their URLs. `weather` says what goes wrong now."""

    sim: Simulation
    dice: Random
    deliver: Callable[[str, Message], bool]  # to a process that listens; False: nobody does, or all are busy
    away: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # until when
    lost: float = 0.0  # of messages
    doubled: float = 0.0
    slow: float = 0.0  # seconds at most
    waiting: dict[tuple[str, str], deque[Message]] = field(default_factory=lambda: defaultdict(deque))

    def put(self) -> None:
        """In place of the real ones."""
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
        """Somebody may be free for what waits in a queue."""
        waiting = self.waiting[url, queue]
        while waiting and self.away[url] <= self.sim.now and self.deliver(url, waiting[0]):
            waiting.popleft()

    def push_all(self) -> None:
        """As `push`, for every queue."""
        for url, queue in list(self.waiting):
            self.push(url, queue)

    def wipe(self) -> None:
        """A broker without a disk was restarted."""
        self.waiting.clear()
