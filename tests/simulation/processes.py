"""Simulated processes: each has its own globals of the engine's modules, its own clock, and actors that end with it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.db import Error

from cells import broker_circuit_breaker, circuit_breaker
from cells.batches import BatchCursor
from compute.builds import build
from compute.operations import dispatch
from compute.periodic import abandoned_snapshots, stale_delete_flags, stale_group_members
from compute.power import orphan_guests
from compute.servers import mappings
from compute.shutdown import grace
from compute.virt.base import VirtError
from tasks import (
    drain,
    heartbeat,
    periodic,
    restart_guests,
    run_step,
    shutdown_recorder,
    tracker,
    worker,
    worker_signals,
)
from tests.simulation import machines, primitives
from tests.simulation.kernel import Actor, Killed, Simulation
from tests.simulation.wire import Message

EVERY = {  # seconds between two rounds; the others: every minute or less often
    "relay": 20.0, "relay_build_requests": 20.0, "strays": 30.0, "dead_conductors": 25.0, "restart_guests": 15.0,
    "evacuated_guests": 30.0, "deferred_deletes": 25.0, "stale_delete_flags": 60.0, "purge_events": 200.0,
    "stale_group_members": 200.0, "inventory": 100.0, "last_known": 100.0, "deferred_events": 100.0,
}  # fmt: skip
SLOTS = 4  # messages a process handles at the same time


def _tracker() -> dict[str, Any]:
    fresh = dict(vars(tracker.Tracker()))
    fresh["_lock"], fresh["_here"] = primitives.Lock(), primitives.Local()
    return fresh


# The globals of the engine that belong to one process: module, name, factory of the first value.
GLOBALS: tuple[tuple[Any, str, Callable[[], Any]], ...] = (
    (circuit_breaker, "_down", dict), (circuit_breaker, "_then", list), (circuit_breaker, "_thread", lambda: None),
    (circuit_breaker, "_changed", primitives.Condition),
    (circuit_breaker, "_lately", dict),
    (broker_circuit_breaker, "_down", dict), (broker_circuit_breaker, "_then", list),
    (broker_circuit_breaker, "_changed", primitives.Condition),
    (mappings, "_lost_since", lambda: defaultdict(dict)), (mappings, "_unmapped_since", lambda: defaultdict(dict)),
    (mappings, "_missized_since", lambda: defaultdict(dict)),
    (mappings, "_mappings_cursor", BatchCursor), (mappings, "_rows_cursor", BatchCursor),
    (stale_delete_flags, "_seen", dict), (stale_delete_flags, "_cursor", BatchCursor),
    (abandoned_snapshots, "_cursor", BatchCursor), (stale_group_members, "_cursor", BatchCursor),
    (orphan_guests, "_said", dict),
    (restart_guests, "_due", primitives.Event),
    (periodic, "_paused", primitives.Event), (periodic, "_back", primitives.Event),
    (drain, "_leaving", primitives.Event),
    (shutdown_recorder, "_posts", list),
    (heartbeat, "_stop", primitives.Event), (heartbeat, "_now", primitives.Event),
    (heartbeat, "_beating", primitives.Lock), (heartbeat, "_registering", primitives.Lock),
    (worker_signals, "_consumer", lambda: None),
    (worker, "_current", lambda: None),
    (grace._Watch, "watcher", lambda: None),
)  # fmt: skip


class Process:
    """One process of the cloud. `lives` counts its starts; `clock` is the error of its wall clock in seconds."""

    def __init__(self, cloud: Any, role: str, host: str, cell: str = "", machine: Any = None, twin: str = "") -> None:
        self.cloud, self.role, self.host, self.cell, self.machine = cloud, role, host, cell, machine
        self.name = f"{role}-{host}{twin}" if role != "host" else f"{host}{twin}"
        self.actors: list[Actor] = []
        self.paused_until = 0.0
        self.clock = 0.0
        self.lives = 0
        self.is_alive = False
        self.listens: list[str] = []  # queues
        self.working = 0
        self.restart_after: float | None = None
        self.me: Any = None
        self._globals: dict[int, Any] = {}
        self._tracker: dict[str, Any] = {}
        self.folder = cloud.folder / self.name
        self.listening: Any = None

    def __repr__(self) -> str:
        return self.name

    # -- its globals

    def load(self) -> None:
        """Put this process's globals into the engine's modules."""
        for number, (module, name, _) in enumerate(GLOBALS):
            setattr(module, name, self._globals[number])
        tracker.tracker.__dict__ = self._tracker
        known = vars(settings)
        known["HOST"], known["ROLE"], known["HOST_STATE"] = self.host, self.role, self.folder
        known["CELL_UUID"], known["CELL_BROKER_URL"] = self.cell, self.cloud.broker_of(self.cell)

    def save(self) -> None:
        """Keep the globals as the engine's modules have them now."""
        for number, (module, name, _) in enumerate(GLOBALS):
            self._globals[number] = getattr(module, name, None)

    def _anew(self) -> None:
        self._globals = {number: make() for number, (_, _, make) in enumerate(GLOBALS)}
        self._tracker = _tracker()

    # -- start and end

    @property
    def broker(self) -> str:
        """The URL of the broker it consumes from."""
        return str(self.cloud.broker_of(self.cell) if self.role in ("host", "conductor") else settings.BROKER_URL)

    def start(self) -> None:
        """Start a new incarnation, unless the process lives."""
        if self.is_alive:
            return
        self.lives += 1
        self.is_alive, self.working, self.listens, self.paused_until = True, 0, [], 0.0
        self.cloud.forget_globals(self)
        self._anew()
        self.folder.mkdir(exist_ok=True)
        if self.role != "api":
            self.cloud.sim.spawn(f"{self.name}/main", self, self._live)

    def kill(self) -> None:
        """SIGKILL: end all its actors. It starts again after `restart_after` seconds, if that is set."""
        if not self.is_alive:
            return
        self.is_alive, self.listens, self.me = False, [], None
        for actor in list(self.actors):
            self.cloud.sim.doom(actor)
        if self.restart_after is not None:
            self.cloud.sim.at(self.cloud.sim.now + self.restart_after, self.start)

    def exit(self, code: int) -> None:
        """End the process from inside. Raises Killed."""
        self.cloud.sim.say(f"{self.name} exits with {code}")
        self.kill()
        raise Killed

    def stop(self) -> None:
        """SIGTERM: drain, or end at once when it has no drain thread."""
        if self.is_alive and self.listening is not None:
            self.listening.enqueue(drain.Signal(15))
        elif self.is_alive:
            self.kill()

    def _live(self) -> None:
        """Call the handlers of tasks/worker_signals.py for Celery's signals worker_init and worker_ready."""
        sender = SimpleNamespace(pidlock=None, process=self)
        worker_signals._init_worker()
        self.listens = self._queues()
        worker_signals._ready(sender)
        self.cloud.wire.push_all()

    def become(self) -> Any:
        """Create the worker, in place of worker.register."""
        driver = machines.open_driver(self.machine) if self.machine is not None else None
        self.me = worker._current = worker.Worker(self.role, self.host, self.cell, driver)
        return self.me

    # -- work

    def _queues(self) -> list[str]:
        if self.role == "host":
            return [dispatch.host_queue(self.host), dispatch.host_queue(self.host, dispatch.OPS)]
        return [dispatch.SCHEDULER_QUEUE if self.role == "scheduler" else dispatch.CONDUCTOR_QUEUE]

    def take(self, message: Message) -> bool:
        """Begin a message if there is a free slot. Return whether it was taken."""
        if not self.is_alive or message.queue not in self.listens or self.working >= SLOTS:
            return False
        self.working += 1
        number = self.cloud.count("task")
        self.cloud.sim.spawn(f"{self.name}/task-{number}", self, lambda: self._work(message, f"task-{number}"))
        return True

    def _work(self, message: Message, key: str) -> None:
        """Do what Celery's signals and the tasks in tasks/*.py do with a message."""
        sim = self.cloud.sim
        sim.point("received", f"{message.name} {message.kwargs}")
        ops = message.queue.startswith("compute-ops.")
        kinds = tracker.Kind
        kind = kinds.OPERATION if ops else kinds.REQUEST
        kind = {dispatch.FOLLOW_DRAIN_REQUESTS: kinds.DRAIN_REQUEST}.get(message.name, kind)
        tracker.tracker.begin(tracker.Work(kind, message.name, key, step_id=message.kwargs.get("step_id")))
        try:
            self._task(message)
        except (Error, VirtError) as error:
            sim.say(f"task failed: {error!r}")
        finally:
            if not sim.actor.fate:
                tracker.tracker.end(key)
                self.working -= 1
                self.cloud.wire.push_all()

    def _task(self, message: Message) -> None:
        if message.name == dispatch.SCHEDULE:
            if refused := tracker.tracker.refused():
                run_step.give_back(refused, worker.current(), dispatch.SCHEDULE, message.kwargs)
            else:
                build.place(message.kwargs["server_id"])
        elif message.name == dispatch.RUN_STEP:
            run_step.run(message.kwargs["step_id"])
        elif message.name == dispatch.FOLLOW_DRAIN_REQUESTS:
            heartbeat.now()
        elif message.name == dispatch.RUN_DRAIN_MIGRATIONS:
            from cells.context import target_cell
            from compute.hosts import drain_migrations

            with target_cell(worker.current().alias):
                drain_migrations.run(message.kwargs["host"])


class Consuming:
    """A worker's Celery consumer, as a drain uses it."""

    def __init__(self, sender: Any) -> None:
        self._process = sender.process

    def close_requests(self) -> None:
        """Stop consuming requests."""
        process = self._process
        process.listens = process._queues()[1:] if process.role == "host" else []

    def open_requests(self) -> None:
        """Consume requests again."""
        self._process.listens = self._process._queues()
        self._process.cloud.wire.push_all()

    def end(self, exitcode: int) -> None:
        """End the process at once: no message is in progress."""
        process = self._process
        with suppress(Killed):
            worker_signals._ended(SimpleNamespace(pidlock=None))
        process.exit(exitcode)


def _stretched(rounds: list[periodic.Periodic]) -> list[periodic.Periodic]:
    """Return the periodic tasks with longer intervals: rounds that find nothing are most of the cost of a run."""
    for one in rounds:
        one.every = EVERY.get(one.name, max(60.0, one.every))
    return rounds


def put_on() -> None:
    """Install the replacements in the engine's modules, once in a process."""

    def current() -> Process:
        actor = Simulation.current.actor if Simulation.current is not None else None
        assert actor is not None
        return actor.process

    def listen(me: worker.Worker, consuming: Consuming) -> drain.Drain:
        process = current()
        made = drain.Drain(me, consuming)  # type: ignore[arg-type]
        tracker.tracker.tell(made.enqueue)
        sim = process.cloud.sim
        process.listening = made
        made.is_alive = lambda: True  # type: ignore[method-assign]
        sim.spawn(f"{process.name}/drain", process, made.run)
        return made

    rounds_of = periodic.tasks_of
    periodic.tasks_of = lambda role: _stretched(rounds_of(role))  # type: ignore[assignment]
    worker.register = lambda: current().become()  # type: ignore[assignment]
    drain.start = listen  # type: ignore[assignment]
    drain.REPORT_EVERY = 60.0
    mappings.PATIENCE = 60.0
    worker_signals.queues = SimpleNamespace(ConsumerHandle=Consuming)  # type: ignore[assignment]
    nothing = SimpleNamespace(
        serve=lambda *_: None, warn_if_impatient=lambda *_: None, watch=lambda *_: None, ready=lambda *_: None,
        extend=lambda *_: None, stopping=lambda *_: None, status=lambda *_: None,
    )  # fmt: skip
    worker_signals.metrics = worker_signals.systemd = drain.systemd = nothing  # type: ignore[assignment]
    worker_signals.os = primitives.os  # type: ignore[attr-defined]
    worker_signals.logging = SimpleNamespace(shutdown=lambda: None, getLogger=logging.getLogger)  # type: ignore[assignment]
    drain.signals = SimpleNamespace(  # type: ignore[assignment]
        worker_shutting_down=SimpleNamespace(
            send=lambda sender, sig, how, exitcode: worker_signals._shutting_down(sig, how)
        )
    )
