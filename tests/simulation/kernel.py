"""Actors, their scheduler and virtual time: the seed alone decides which actor runs, and when.

An actor is a thread of a simulated process. It is a greenlet, not a thread of the operating system: a switch costs a
microsecond, and the kernel's scheduler decides nothing. At a yield point another actor may be switched to. When no
actor can run, time jumps to the next moment at which one can.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import greenlet

EPOCH = 1_800_000_000.0  # seconds since 1970 at which every run begins
FOREVER = float("inf")
KEPT = 200_000  # events of a trace
LEAST = 1e-4  # seconds: a shorter wait is lost in float rounding and would never end


class Killed(BaseException):
    """The actor's process was killed. Engine code does not catch it, as no code catches SIGKILL."""


class Stuck(AssertionError):
    """The simulation itself makes no progress."""


class Actor:
    """One thread of one simulated process."""

    __slots__ = (
        "atomic", "fate", "green", "is_done", "name", "number", "paused_until", "process", "sim", "waits_on", "wake_at",
        "what", "where", "work",
    )  # fmt: skip

    def __init__(self, sim: Simulation, name: str, process: Any, work: Callable[[], Any]) -> None:
        self.sim, self.name, self.process, self.work = sim, name, process, work
        self.number = next(sim.numbers)
        self.green: greenlet.greenlet | None = None
        self.is_done = False
        self.wake_at = 0.0  # the earliest moment at which it runs
        self.waits_on: Any = None
        self.paused_until = 0.0
        self.fate = False  # killed, but not unwound yet
        self.atomic = 0  # open transactions, of any database
        self.where = ""
        self.what: dict[str, Any] = {}  # notes of other modules

    def __repr__(self) -> str:
        return self.name

    def play(self, *_: object) -> None:
        """Run the actor from start to end."""
        try:
            if not self.fate:
                self.work()
        except Killed:
            pass
        except Exception as error:
            self.sim.crashed(self, error)
        self.sim.ended(self)


class Simulation:
    """One simulation run: its actors, its time, its random numbers and its trace."""

    current: Simulation | None = None

    def __init__(self, seed: int, *, switch: float = 0.3, verbose: bool = False) -> None:
        self.seed, self.switch, self.verbose = seed, switch, verbose
        self.dice = random.Random(f"schedule {seed}")
        self.numbers = count()
        self.now = EPOCH
        self.actors: list[Actor] = []
        self.doomed: deque[Actor] = deque()
        self.actor: Actor | None = None  # the one that runs
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.main = greenlet.getcurrent()
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=KEPT)
        self.hash = 0
        self.folder = ""  # of this run; hidden from the trace, as its name is random
        self.events = 0
        self.is_over = False
        self.end_at = FOREVER
        self.at_yield: Callable[[Actor, str, str], None] = lambda actor, kind, text: None
        self.on_crash: Callable[[Actor, BaseException], None] = lambda actor, error: None
        self.enter: Callable[[Actor], None] = lambda actor: None  # called before an actor continues
        self.most = 400_000

    # -- the trace

    def say(self, text: str) -> None:
        """Add a line to the trace."""
        name = self.actor.name if self.actor is not None else "-"
        text = text.replace(self.folder, "FOLDER") if self.folder else text
        self.hash = zlib.crc32(f"{self.now:.6f}{name}{text}".encode(), self.hash)
        self.trace.append((self.now, name, text))

    def crashed(self, actor: Actor, error: BaseException) -> None:
        """Record an exception that the actor did not catch."""
        self.say(f"ended with {error!r}")
        self.on_crash(actor, error)

    # -- actors

    def spawn(self, name: str, process: Any, work: Callable[[], Any], at: float = 0.0) -> Actor:
        """Create an actor that starts at a moment."""
        actor = Actor(self, name, process, work)
        actor.wake_at = at
        self.actors.append(actor)
        if process is not None:
            process.actors.append(actor)
        return actor

    def at(self, moment: float, work: Callable[[], None]) -> None:
        """Call `work` at a moment, outside any actor. It must not wait for anything."""
        heapq.heappush(self.timers, (moment, next(self.numbers), work))

    def doom(self, actor: Actor) -> None:
        """Kill an actor: it runs next, only to unwind."""
        if not actor.is_done and not actor.fate:
            actor.fate = True
            if actor.green is None:
                self._bury(actor)
            elif actor is not self.actor:
                self.doomed.append(actor)

    def run(self) -> None:
        """Run until the simulation is over, then unwind every actor."""
        self._pass_on(self._next())
        self.is_over = True
        self.actor = None
        for actor in list(self.actors):
            self.doom(actor)
        if self.doomed:
            self._pass_on(self.doomed.popleft())
        self.actor = None

    def ended(self, actor: Actor) -> None:
        """Remove an actor that ended, and make the next one the parent of its greenlet: execution continues there."""
        self._bury(actor)
        assert actor.green is not None
        actor.green.parent = self._green(self._next())

    def _bury(self, actor: Actor) -> None:
        actor.is_done = True
        self.actors.remove(actor)
        if actor.process is not None:
            actor.process.actors.remove(actor)

    # -- yield points, for the actor that runs

    def point(self, kind: str, text: str = "") -> None:
        """Yield before an effect that others can see: another actor may run first, or a fault may strike."""
        me = self.actor
        if me is None:
            return
        if me.fate:
            raise Killed
        self.events += 1
        if self.events > self.most:
            raise Stuck(f"no end after {self.events} events")
        self.now += 0.0002 + self.dice.random() * 0.002
        self.say(f"{kind} {text}")
        if me.atomic:
            self.at_yield(me, kind, text)
            if me.fate:
                raise Killed
            return
        me.where = kind
        self.at_yield(me, kind, text)
        if me.fate:
            raise Killed
        if me.paused_until > self.now or me.process_paused_until() > self.now or self.dice.random() < self.switch:
            self._switch(me)

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the running actor."""
        me = self.actor
        if me is None:
            return
        if me.fate:
            raise Killed
        if me.atomic:
            self.now += max(0.0, seconds)
            return
        me.wake_at = self.now + max(0.001, seconds)  # a shorter rest would never end
        self._switch(me)

    def wait(self, bell: Any, seconds: float | None = None) -> bool:
        """Wait until the bell rings (`ring`), or for so many seconds. Return whether it rang."""
        me = self.actor
        assert me is not None
        if me.fate:
            raise Killed
        me.waits_on = bell
        me.wake_at = FOREVER if seconds is None else self.now + (max(LEAST, seconds) if seconds > 0 else 0.0)
        self._switch(me)
        rang = me.waits_on is None
        me.waits_on = None
        return rang

    def ring(self, bell: Any, most: int = -1) -> None:
        """Wake the actors that wait for a bell; at most `most` of them, if that is not negative."""
        for actor in self.actors:
            if actor.waits_on is bell and most:
                actor.waits_on, actor.wake_at = None, 0.0
                most -= 1

    def _switch(self, me: Actor) -> None:
        following = self._next()
        if following is not me:
            self._pass_on(following)
        if me.fate:
            raise Killed

    def _pass_on(self, following: Actor | None) -> None:
        self._green(following).switch()

    def _green(self, following: Actor | None) -> greenlet.greenlet:
        """Return an actor's greenlet and make it the running one; None: the greenlet that created the simulation."""
        if following is None:
            return self.main
        if following.green is None:
            following.green = greenlet.greenlet(following.play, parent=self.main)
        self.actor = following
        self.enter(following)
        return following.green

    def _next(self) -> Actor | None:
        """Choose the actor that runs next; None: the run is over."""
        while True:
            if self.doomed:
                return self.doomed.popleft()
            if self.is_over:
                return None
            now = self.now
            while self.timers and self.timers[0][0] <= now:
                heapq.heappop(self.timers)[2]()
                if self.doomed:
                    break
            if self.doomed:
                continue
            if self.is_over or now >= self.end_at:
                return None
            ready, soonest = [], self.timers[0][0] if self.timers else FOREVER
            for actor in self.actors:
                paused = max(actor.paused_until, actor.process_paused_until())
                due = actor.wake_at if actor.wake_at > paused else paused
                if due <= now:
                    ready.append(actor)
                elif due < soonest:
                    soonest = due
            if ready:
                return ready[0] if len(ready) == 1 else ready[int(self.dice.random() * len(ready))]
            if soonest == FOREVER:
                return None
            self.now = min(soonest, self.end_at)


def _process_paused_until(actor: Actor) -> float:
    return actor.process.paused_until if actor.process is not None else 0.0


Actor.process_paused_until = _process_paused_until  # type: ignore[attr-defined]
