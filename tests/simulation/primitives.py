"""Replacements of `threading`, `queue` and `os` in the engine's modules: waiting lets virtual time pass."""

from __future__ import annotations

import os as real_os
import queue as real_queue
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.kernel import Simulation


def _sim() -> Simulation:
    assert Simulation.current is not None
    return Simulation.current


class Event:
    """Like threading.Event."""

    def __init__(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        _sim().ring(self)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag:
            _sim().wait(self, timeout)
        return self._flag


class Lock:
    """Like threading.Lock, but re-entrant: it serves as RLock, too. The end of its owner releases it."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sim = _sim()
        me = sim.actor
        end = None if timeout < 0 else sim.now + timeout
        while self._owner is not None and self._owner is not me and not self._owner.is_done:
            if not blocking or (end is not None and sim.now >= end):
                return False
            sim.wait(self, None if end is None else end - sim.now)
        self._owner, self._depth = me, (self._depth + 1 if self._owner is me else 1)
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            _sim().ring(self)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class Condition:
    """Like threading.Condition. Code in its block has no yield point, so there is no lock to hold."""

    def __init__(self, lock: Any = None) -> None:
        pass

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *exc: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        return _sim().wait(self, timeout)

    def wait_for(self, is_so: Callable[[], Any], timeout: float | None = None) -> Any:
        sim = _sim()
        end = None if timeout is None else sim.now + timeout
        while not (result := is_so()):
            if end is not None and sim.now >= end:
                return is_so()
            self.wait(None if end is None else end - sim.now)
        return result

    def notify(self, n: int = 1) -> None:
        _sim().ring(self, n)

    def notify_all(self) -> None:
        _sim().ring(self)


class Thread:
    """Like threading.Thread: one more actor of the same process."""

    def __init__(
        self, group: None = None, target: Any = None, name: str = "thread", args: Any = (), kwargs: Any = None,
        *, daemon: bool | None = None,
    ) -> None:  # fmt: skip
        self._target, self.name, self._args, self._kwargs = target, name, args, kwargs or {}
        self.actor: Any = None

    def start(self) -> None:
        sim = _sim()
        assert sim.actor is not None
        process = sim.actor.process
        where = process.name if process is not None else "-"
        self.actor = sim.spawn(f"{where}/{self.name}", process, self.run)
        self.actor.what["thread"] = self

    def run(self) -> None:
        self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self.actor is not None and not self.actor.is_done

    def join(self, timeout: float | None = None) -> None:
        sim = _sim()
        end = None if timeout is None else sim.now + timeout
        while self.is_alive() and (end is None or sim.now < end):
            sim.sleep(0.05 if end is None else min(0.05, end - sim.now))


class SimpleQueue:
    """Like queue.SimpleQueue."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        _sim().ring(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        sim = _sim()
        end = None if timeout is None else sim.now + timeout
        while not self._items:
            if not block or (end is not None and sim.now >= end):
                raise real_queue.Empty
            sim.wait(self, None if end is None else end - sim.now)
        return self._items.popleft()


class Local:
    """Like threading.local, per actor."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _sim().actor.what[id(self), name]  # type: ignore[union-attr]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        _sim().actor.what[id(self), name] = value  # type: ignore[union-attr]


class _Threading:
    """Replaces the module threading."""

    Event, Condition, Thread = Event, Condition, Thread
    Lock = RLock = Lock
    local = Local
    _nobody = object()

    @staticmethod
    def enumerate() -> list[Thread]:
        """Return the threads of the calling process."""
        actor = _sim().actor
        process = actor.process if actor is not None else None
        known = process.actors if process is not None else []
        return [one.what["thread"] for one in known if "thread" in one.what]

    @staticmethod
    def current_thread() -> Any:
        actor = _sim().actor
        return actor.what.get("thread", _Threading._nobody) if actor is not None else _Threading._nobody

    @staticmethod
    def main_thread() -> Any:
        return _Threading._nobody

    @staticmethod
    def get_ident() -> int:
        actor = _sim().actor
        return actor.number if actor is not None else 0


class _Queue:
    """Replaces the module queue."""

    SimpleQueue, Empty = SimpleQueue, real_queue.Empty


class _Os:
    """Replaces the module os: `_exit` ends the simulated process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(real_os, name)

    @staticmethod
    def _exit(code: int) -> None:
        sim = _sim()
        assert sim.actor is not None
        sim.actor.process.exit(code)


threading, queue, os = _Threading(), _Queue(), _Os()
