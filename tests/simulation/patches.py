"""The world the engine sees: time, randomness, databases, HTTP and its own threads. Installed once in a process.

The product does not know of it: each replacement is made from outside, at the outermost name.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from tests.simulation import primitives
from tests.simulation.kernel import Killed, Simulation

SAVEPOINT = re.compile(r"s\d+_x")  # Django puts the thread id into the name
OURS = ("cloud", "cells", "compute", "tasks")
_real = {"time": time.time, "monotonic": time.monotonic, "sleep": time.sleep, "now": timezone.now,
         "perf_counter": time.perf_counter, "urandom": os.urandom}  # fmt: skip
_pristine: dict[str, bytes] = {}
_ids = random.Random()


def put_on() -> None:
    """Install all patches, after Django is set up and before the engine's modules are used."""
    _time()
    _databases()
    _modules()


def real_time() -> float:
    """Return the real clock of this machine, for durations."""
    return _real["perf_counter"]()


# -- time and randomness


def wall() -> float:
    """Return the wall clock of the actor's process: virtual time plus the error of its clock."""
    sim = Simulation.current
    if sim is None:
        return _real["time"]()
    actor = sim.actor
    return sim.now + (actor.process.clock if actor is not None and actor.process is not None else 0.0)


def _monotonic() -> float:
    sim = Simulation.current
    return _real["monotonic"]() if sim is None else sim.now - 1_700_000_000.0


def _sleep(seconds: float) -> None:
    sim = Simulation.current
    if sim is None or sim.actor is None:
        _real["sleep"](seconds)
    else:
        sim.sleep(seconds)


def _now() -> datetime:
    return _real["now"]() if Simulation.current is None else datetime.fromtimestamp(wall(), UTC)


def _urandom(size: int) -> bytes:
    return _real["urandom"](size) if Simulation.current is None else _ids.randbytes(size)


def seed_ids(seed: int) -> None:
    """Derive all ids and jitter that are generated from now on from the seed."""
    _ids.seed(f"ids {seed}")
    random.seed(f"jitter {seed}")


def _time() -> None:
    time.time, time.monotonic, time.sleep = wall, _monotonic, _sleep
    timezone.now = _now
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]  # `secrets` uses it
    _everywhere(_real["monotonic"], _monotonic)
    _everywhere(_real["time"], wall)


def _everywhere(old: Any, new: Any) -> None:
    """Replace a function also in our modules that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OURS and module is not None:
            for attribute, value in list(vars(module).items()):
                if value is old:
                    setattr(module, attribute, new)


# -- databases


class Away(OperationalError):
    """The simulated database does not answer, or its answer is lost."""


class Faults:
    """Hooks for faults of databases, set by `harm`, and for the checks of `fence`."""

    before: Callable[[str, str], None] = staticmethod(lambda alias, sql: None)
    after: Callable[[str, str], None] = staticmethod(lambda alias, sql: None)
    commit: Callable[[str], str] = staticmethod(lambda alias: "")  # "", "failed" or "lost"
    watch: Callable[[str, str, Any], None] = staticmethod(lambda alias, sql, params: None)


def _databases() -> None:
    """Open one connection per database, shared by all actors: no actor is switched out inside a transaction."""
    connections._connections = SimpleNamespace()  # type: ignore[assignment]
    for alias in connections.databases:
        connection = connections[alias]
        connection.inc_thread_sharing()
        connection.ensure_connection()
    from django.core.management import call_command

    first = next(alias for alias in connections.databases if alias != "default")
    for alias in ("default", first):
        call_command("migrate", database=alias, verbosity=0, interactive=False)
    for alias in connections.databases:
        _pristine[alias] = connections["default" if alias == "default" else first].connection.serialize()
        connections[alias].execute_wrappers.append(_Statement(alias))
        connections[alias].connection.create_function("strftime", -1, _strftime)
    _patch_transactions()


def _strftime(form: str, *more: Any) -> str | None:
    """SQLite's strftime, with the database's time in place of "now"."""
    if more and str(more[0]).lower() == "now" and len(more) == 1 and Simulation.current is not None:
        moment = datetime.fromtimestamp(database_time(), UTC)
        text = moment.strftime(form.replace("%f", "%S.@@").replace("%J", "%j"))
        return text.replace("@@", f"{moment.microsecond // 1000:03d}")
    marks = ", ".join("?" * (1 + len(more)))
    return _plain.execute(f"SELECT strftime({marks})", (form, *more)).fetchone()[0]


_plain = sqlite3.connect(":memory:", check_same_thread=False)


def database_time() -> float:
    """Return the time of the databases: their clocks never jump."""
    sim = Simulation.current
    return _real["time"]() if sim is None else sim.now


def empty() -> None:
    """Reset every database to its state after the migrations."""
    for alias, image in _pristine.items():
        restore(alias, image)
        connection = connections[alias]
        connection.in_atomic_block, connection.needs_rollback = False, False
        connection.savepoint_ids, connection.run_on_commit = [], []
        connection.atomic_blocks = []
        connection.closed_in_transaction = connection.errors_occurred = False
        connection.commit_on_exit = connection.autocommit = True


def snapshot(alias: str) -> bytes:
    """Return a backup of a database."""
    return connections[alias].connection.serialize()


def restore(alias: str, image: bytes) -> None:
    """Replace a database's content by that of a backup."""
    raw = connections[alias].connection
    if raw.in_transaction:
        raw.rollback()
    raw.deserialize(image)


class _Statement:
    """The wrapper of every statement: a yield point, faults and checks."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sim = Simulation.current
        if sim is None or sim.actor is None:
            return execute(sql, params, many, context)
        me = sim.actor
        if me.fate:
            raise Killed
        said = SAVEPOINT.sub("s_x", sql) if "SAVEPOINT" in sql else sql
        short = _in_short(said, params) if sim.verbose else said[:60]
        sim.point("sql", f"{self.alias[:13]} {short}")
        try:
            Faults.before(self.alias, sql)
            Faults.watch(self.alias, sql, params)
            result = execute(sql, params, many, context)
            Faults.after(self.alias, sql)
        except OperationalError:
            context["connection"].errors_occurred = True
            raise
        return result


def _in_short(sql: str, params: Any) -> str:
    """Return a statement for the trace, without the columns of a SELECT."""
    if sql.startswith("SELECT") and " FROM " in sql:
        sql = f"SELECT … FROM {sql.partition(' FROM ')[2]}"
    return f"{sql} -- {params}"[:1200] if params else sql


def _patch_transactions() -> None:
    enter, leave, commit = transaction.Atomic.__enter__, transaction.Atomic.__exit__, BaseDatabaseWrapper._commit
    hooks = BaseDatabaseWrapper.run_and_clear_commit_hooks

    def begin(self: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if sim is None or me is None:
            enter(self)
            return
        connection = transaction.get_connection(self.using)
        if not connection.in_atomic_block:
            sim.point("begin", connection.alias[:13])
        me.atomic += 1
        try:
            enter(self)
        except BaseException:
            me.atomic -= 1
            raise

    def end(self: Any, *exc: Any) -> None:
        sim = Simulation.current
        me = sim.actor if sim is not None else None
        if sim is None or me is None:
            leave(self, *exc)
            return
        me.atomic -= 1
        connection = transaction.get_connection(self.using)
        outermost = len(connection.savepoint_ids) == 0
        me.atomic += outermost  # no yield point during the commit itself and its cleanup
        inside = True
        try:
            if outermost:
                connection._left = me
            leave(self, *exc)
            inside = False
        finally:
            me.atomic -= outermost
            connection._left = None
        if outermost and not inside:
            _run_hooks(sim, connection)

    def committing(self: Any) -> None:
        sim = Simulation.current
        fate = Faults.commit(self.alias) if sim is not None and sim.actor is not None else ""
        if fate == "failed":
            self.errors_occurred = True
            raise Away("COMMIT failed")
        commit(self)
        if fate == "lost":
            self.errors_occurred = True
            raise Away("the answer to COMMIT is lost")

    def later(self: Any) -> None:
        """Keep the on_commit hooks until the transaction has been left: other actors may run meanwhile."""
        if Simulation.current is None or Simulation.current.actor is None:
            hooks(self)
        else:
            self._hooks, self.run_on_commit = getattr(self, "_hooks", []) + self.run_on_commit, []

    transaction.Atomic.__enter__, transaction.Atomic.__exit__ = begin, end  # type: ignore[method-assign]
    BaseDatabaseWrapper._commit = committing  # type: ignore[attr-defined]
    BaseDatabaseWrapper.run_and_clear_commit_hooks = later  # type: ignore[method-assign]


def _run_hooks(sim: Simulation, connection: Any) -> None:
    mine, connection._hooks = getattr(connection, "_hooks", []), []
    sim.point("end", connection.alias[:13])
    for _, hook, robust in mine:
        if robust:
            try:
                hook()
            except Exception:
                sim.say("a robust hook failed")
        else:
            hook()


# -- threads of the engine, HTTP and other interfaces


def _modules() -> None:
    import compute.servers.image_transfer
    import compute.virt.events
    import compute.virt.guest_locks
    import compute.virt.shutdown_watcher
    import compute.virt.wakeable_thread
    import tasks.deregister
    import tasks.drain
    import tasks.heartbeat
    import tasks.periodic
    import tasks.shutdown_recorder
    import tasks.worker_signals
    from cells import broker_circuit_breaker, cell_threads, circuit_breaker, databases, outages, query_deadline
    from compute.operations import dispatch

    for module in (
        compute.virt.events, compute.virt.guest_locks, compute.virt.shutdown_watcher, compute.virt.wakeable_thread,
        tasks.deregister, tasks.heartbeat, tasks.periodic, tasks.shutdown_recorder, tasks.worker_signals,
        circuit_breaker, broker_circuit_breaker,
    ):  # fmt: skip
        module.threading = primitives.threading  # type: ignore[attr-defined]
    compute.virt.events.queue = primitives.queue  # type: ignore[attr-defined]
    tasks.drain.queue, tasks.drain.os = primitives.queue, primitives.os  # type: ignore[attr-defined]
    databases.register = lambda cell: cell.alias  # type: ignore[assignment]
    databases.register_url = lambda alias, url: alias  # type: ignore[assignment]
    cell_threads._pool = lambda cell_id: _InLine()  # type: ignore[assignment,return-value]
    cell_threads._shared = _InLine()  # type: ignore[assignment]
    query_deadline._watch = lambda line, end: None  # type: ignore[assignment]
    query_deadline._forget = lambda line: None  # type: ignore[assignment]
    dispatch._senders = _InLine()  # type: ignore[assignment]
    outages.write = lambda: None  # type: ignore[assignment]
    compute.servers.image_transfer.requests = _Http()  # type: ignore[assignment]


class _InLine:
    """An executor without threads: `submit` does the work at once, in the calling actor."""

    def submit(self, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **more))
        except Exception as error:
            future.set_exception(error)
        return future


class _Answer:
    def __init__(self, status: int, content: bytes = b"", headers: Any = None, method: str = "GET") -> None:
        self.status_code, self.content, self.headers = status, content, dict(headers or {})
        self.request = SimpleNamespace(method=method)

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def iter_content(self, size: int) -> list[bytes]:
        return [self.content]


class _Http:
    """Replaces `requests` as far as hosts use it: the image service runs in the same process."""

    class RequestException(OSError):
        """No answer."""

    DISK = b"\xeb\xfe".ljust(512, b"\0")

    def get(self, url: str, **_: Any) -> _Answer:
        return _Answer(200, self.DISK)

    def put(self, url: str, data: Any, headers: dict[str, str], **_: Any) -> _Answer:
        from django.test import Client

        extra = {"HTTP_X_IMAGE_TICKET": headers["X-Image-Ticket"]}
        path = url.removeprefix("http://simulation")
        me = Simulation.current.actor if Simulation.current is not None else None
        step = me.what.pop("step", None) if me is not None else None  # the image service is another process
        try:
            answer = Client().put(path, data.read(), content_type="application/octet-stream", **extra)
        finally:
            if me is not None and step is not None:
                me.what["step"] = step
        return _Answer(answer.status_code, answer.content, answer.headers, "PUT")
