"""Actors, the baton and virtual time: who runs, and when, is drawn from the seed; nothing else decides it.

An actor is a thread of a simulated process. It is a greenlet, not a thread of the operating system: to hand the baton
over costs a microsecond and no scheduler, and nothing outside decides anything. At a yield point the actor may lose the
baton to another one. When no actor can run, time jumps to the next moment at which one can.
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

EPOCH = 1_800_000_000.0  # seconds since 1970 at which every story begins
FOREVER = float("inf")
KEPT = 200_000  # events of a trace
LEAST = 1e-4  # seconds: less is lost in the rounding of a float, and who waits for that would wait for ever


class Killed(BaseException):
    """This actor's process is gone. Nothing of ours catches it, as nothing catches SIGKILL."""


class Stuck(AssertionError):
    """The simulation itself does not get on."""


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
        self.wake_at = 0.0  # runs from then on
        self.waits_on: Any = None
        self.paused_until = 0.0
        self.fate = False  # killed, and does not know it yet
        self.atomic = 0  # open transactions, of any database
        self.where = ""
        self.what: dict[str, Any] = {}  # what others note about it

    def __repr__(self) -> str:
        return self.name

    def play(self, *_: object) -> None:
        """All of its life."""
        try:
            if not self.fate:
                self.work()
        except Killed:
            pass
        except Exception as error:
            self.sim.crashed(self, error)
        self.sim.ended(self)


class Simulation:
    """One story: its actors, its time, its dice and its trace."""

    current: Simulation | None = None

    def __init__(self, seed: int, *, switch: float = 0.3, verbose: bool = False) -> None:
        self.seed, self.switch, self.verbose = seed, switch, verbose
        self.dice = random.Random(f"schedule {seed}")
        self.numbers = count()
        self.now = EPOCH
        self.actors: list[Actor] = []
        self.doomed: deque[Actor] = deque()
        self.actor: Actor | None = None  # who has the baton
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.main = greenlet.getcurrent()
        self.trace: deque[tuple[float, str, str]] = deque(maxlen=KEPT)
        self.hash = 0
        self.folder = ""  # of this play: its name is not of the story
        self.events = 0
        self.is_over = False
        self.end_at = FOREVER
        self.at_yield: Callable[[Actor, str, str], None] = lambda actor, kind, text: None
        self.on_crash: Callable[[Actor, BaseException], None] = lambda actor, error: None
        self.enter: Callable[[Actor], None] = lambda actor: None  # before an actor goes on
        self.most = 400_000

    # -- the trace

    def say(self, text: str) -> None:
        """One line of the trace."""
        name = self.actor.name if self.actor is not None else "-"
        text = text.replace(self.folder, "FOLDER") if self.folder else text
        self.hash = zlib.crc32(f"{self.now:.6f}{name}{text}".encode(), self.hash)
        self.trace.append((self.now, name, text))

    def crashed(self, actor: Actor, error: BaseException) -> None:
        """It ended with an exception nobody caught."""
        self.say(f"ended with {error!r}")
        self.on_crash(actor, error)

    # -- life

    def spawn(self, name: str, process: Any, work: Callable[[], Any], at: float = 0.0) -> Actor:
        """One more actor, from a moment on."""
        actor = Actor(self, name, process, work)
        actor.wake_at = at
        self.actors.append(actor)
        if process is not None:
            process.actors.append(actor)
        return actor

    def at(self, moment: float, work: Callable[[], None]) -> None:
        """Have something done at a moment by nobody in particular. It must not wait for anything."""
        heapq.heappush(self.timers, (moment, next(self.numbers), work))

    def doom(self, actor: Actor) -> None:
        """It dies at once: the next to run, and only to let go."""
        if not actor.is_done and not actor.fate:
            actor.fate = True
            if actor.green is None:
                self._bury(actor)
            elif actor is not self.actor:
                self.doomed.append(actor)

    def run(self) -> None:
        """Until the story is over."""
        self._pass_on(self._next())
        self.is_over = True
        self.actor = None
        for actor in list(self.actors):
            self.doom(actor)
        if self.doomed:
            self._pass_on(self.doomed.popleft())
        self.actor = None

    def ended(self, actor: Actor) -> None:
        """Its last words: where a greenlet that ends goes on is its parent."""
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
        """Something is about to happen that others can see: here another may come first, or harm may."""
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
        """Let virtual time pass."""
        me = self.actor
        if me is None:
            return
        if me.fate:
            raise Killed
        if me.atomic:
            self.now += max(0.0, seconds)
            return
        me.wake_at = self.now + max(0.001, seconds)  # or what is left of a time would never be over
        self._switch(me)

    def wait(self, bell: Any, seconds: float | None = None) -> bool:
        """Until the bell rings (`ring`), or so long; whether it rang."""
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
        """Wake who waits for it."""
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
        """Of who goes on; None: of whoever told the story."""
        if following is None:
            return self.main
        if following.green is None:
            following.green = greenlet.greenlet(following.play, parent=self.main)
        self.actor = following
        self.enter(following)
        return following.green

    def _next(self) -> Actor | None:
        """Who goes on; None: the story is over."""
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
