"""Every way a cell's database can be in trouble: the others answer, and what is spent on it is bounded."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from bench.proxy import Proxy
from cells import cell_threads, circuit_breaker, scatter
from cells.models import Cell
from tests.servers import postgres

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
CLIENTS = 16
TABLES = "CREATE TABLE compute_instance (id int); CREATE TABLE compute_service (id int)"


@dataclass
class Road:
    """A real PostgreSQL cell database, and a way to it that can be broken."""

    server: postgres.Server
    proxy: Proxy

    @property
    def straight(self) -> str:
        return f"{self.server.url}/cell"

    @property
    def url(self) -> str:
        return self.straight.replace(f":{self.server.port}/", f":{self.proxy.port}/")


@dataclass
class Trouble:
    """What is wrong, and how it is mended, where it can be. `before`: connections it did not cause."""

    url: str
    mend: Callable[[], object] | None = None
    before: int = 0
    reason: str = ""  # a pattern: how the operator is told
    ends: ExitStack = field(default_factory=ExitStack)

    def connections(self) -> int:
        """Of this process, to its port."""
        port = re.search(r"@127.0.0.1:(\d+)/", self.url)
        if port is None:
            return 0
        mine = {os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        to_it = [row for row in rows if int(row[2].partition(":")[2], 16) == int(port[1])]
        return sum(f"socket:[{row[9]}]" in mine for row in to_it) - self.before


@pytest.fixture(scope="module")
def road() -> Iterator[Road]:
    """One server for all of them."""
    server = postgres.Server(*postgres.FORGETFUL)
    try:
        server.start()
        server.create("cell")
        with psycopg.connect(f"{server.url}/cell") as connection:
            connection.execute(TABLES)
        proxy = Proxy(server.port)
        try:
            yield Road(server, proxy)
        finally:
            proxy.end()
    finally:
        server.stop()
        server.remove()


def broken(mode: str) -> Callable[[Road, str], Trouble]:
    """It refuses; takes connections and says nothing; says everything five seconds late."""

    def make(road: Road, _: str) -> Trouble:
        road.proxy.order(mode)
        ends = ExitStack()
        ends.callback(road.proxy.order, "up")
        return Trouble(road.url, lambda: road.proxy.order("up"), ends=ends)

    return make


def locked(road: Road, _: str) -> Trouble:
    """Somebody alters a table, and does not end."""
    connection = psycopg.connect(road.straight)
    connection.execute("LOCK TABLE compute_instance")
    ends = ExitStack()
    ends.callback(connection.close)
    return Trouble(road.straight, connection.close, ends=ends)


def drops_packets(_: Road, __: str) -> Trouble:
    """Nobody answers, not even with a refusal: the queue of those who want in is full."""
    ends = ExitStack()
    server = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    for _number in range(3):
        waiting = ends.enter_context(socket.socket())
        waiting.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            waiting.connect(server.getsockname())
    return Trouble(f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/x", ends=ends)


def wrong_password(road: Road, _: str) -> Trouble:
    return Trouble(re.sub(":[^:]*@", ":another@", road.straight))


def no_such_database(road: Road, _: str) -> Trouble:
    return Trouble(f"{road.server.url}/elsewhere")


def no_tables(road: Road, _: str) -> Trouble:
    return Trouble(f"{road.server.url}/postgres")


def no_file(_: Road, folder: str) -> Trouble:
    file = f"{folder}/missing.sqlite3"
    return Trouble(f"sqlite:///{file}", lambda: made(file))


def locked_file(_: Road, folder: str) -> Trouble:
    file = made(f"{folder}/locked.sqlite3")
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    ends = ExitStack()
    ends.callback(connection.close)
    return Trouble(f"sqlite:///{file}?timeout=1", connection.close, ends=ends)


def damaged_file(_: Road, folder: str) -> Trouble:
    """Something else was written over it; the backup takes its place."""
    file = Path(folder) / "damaged.sqlite3"
    file.write_bytes(b"not a database " * 1000)
    return Trouble(f"sqlite:///{file}", lambda: os.replace(made(f"{folder}/backup.sqlite3"), file))


def made(file: str) -> str:
    """A cell's SQLite file."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(TABLES)
    return file


def wrong(url: str) -> Callable[[Road, str], Trouble]:
    return lambda *_: Trouble(url)


TROUBLES = {
    "refuses": broken("refuse"), "black hole": broken("silent"), "answers after 5 s": broken("slow"),
    "locked tables": locked, "drops packets": drops_packets, "no such database": no_such_database,
    "no tables": no_tables, "file missing": no_file, "file locked": locked_file, "file damaged": damaged_file,
    "wrong password": wrong_password,
    "folder missing": wrong("sqlite:////proc/nowhere/x.sqlite3"), "no database at all": wrong("carrier-pigeon://loft"),
    "no port": wrong("postgresql://u:p@host:port/x"), "unknown machine": wrong("postgresql://u@nowhere.invalid/x"),
}  # fmt: skip
REASONS = {
    "refuses": "refused: nothing listens there|refused: the connection was cut", "black hole": "silent: did not answer",
    "answers after 5 s": "silent: did not answer", "locked tables": "silent", "drops packets": "silent: did not answer",
    "no such database": "missing: the server has no such database", "no tables": "missing: the cell has no tables yet",
    "file missing": "missing: there is no such file", "file locked": "silent",
    "file damaged": "damaged: file is not a database", "wrong password": "wrong password",
    "folder missing": "missing: there is no such file", "no database at all": "wrong URL: use sqlite:",
    "no port": "wrong URL: not a database URL", "unknown machine": "missing: no machine has this name",
}  # fmt: skip


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest, road: Road, tmp_path) -> Iterator[Trouble]:
    """One of them."""
    found = TROUBLES[request.param](road, str(tmp_path))
    found.before = found.connections()
    found.reason = REASONS[request.param]
    yield found
    found.ends.close()


@pytest.fixture
def bad(cells, trouble: Trouble) -> Cell:
    """The cell that has it."""
    return Cell.objects.create(id=str(uuid4()), name="bad", database_url=trouble.url)


def ask(cell: Cell) -> str:
    """As every request does."""
    if cell.name == "bad":
        scatter.probe_tables(cell)
    return cell.name


def threads(cell: Cell) -> int:
    """That ask a cell."""
    return sum(thread.name.startswith(f"cell-{cell.id[:8]}") for thread in threading.enumerate())


def test_a_cell_in_trouble_costs_the_others_nothing_and_comes_back(cells, bad, trouble, settings):
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 2.0, 60
    everybody = [*cells.values(), bad]
    with ThreadPoolExecutor(CLIENTS) as clients:  # those who will answer have their connections
        list(clients.map(lambda _: scatter.gather(cells.values(), ask, timeout=30), range(CLIENTS)))

    def request(_: int) -> float:
        begun = time.monotonic()
        gathered = scatter.gather(everybody, ask)
        assert sorted(gathered.values()) == ["cell0", "cell1", "cell2"]
        assert bad.id in gathered.down
        return time.monotonic() - begun

    with ThreadPoolExecutor(CLIENTS) as clients:
        first = list(clients.map(request, range(CLIENTS)))
        assert max(first) < settings.CELL_TIMEOUT + 5  # a busy machine's
        reason = circuit_breaker.known_down(bad.id)
        assert reason != scatter.BUSY
        if not re.match(trouble.reason, reason):  # a busy machine's answer was late: the next look says why
            look_now(bad)
            until(lambda: re.match(trouble.reason, circuit_breaker.known_down(bad.id)) is not None)
        later = list(clients.map(request, range(10 * CLIENTS)))
    assert sorted(later)[len(later) // 2] < settings.CELL_TIMEOUT / 2
    assert threads(bad) <= cell_threads.THREADS_PER_CELL
    until(lambda: trouble.connections() <= cell_threads.THREADS_PER_CELL)  # those that were given up are being closed
    if trouble.mend:
        trouble.mend()
        settings.CELL_RETRY_INTERVAL = 0.2
        look_now(bad)
        until(lambda: not circuit_breaker.known_down(bad.id))
        assert scatter.ask_one(bad, ask) == "bad"


def test_a_missing_file_is_not_made(cells, tmp_path, settings):
    settings.CELL_RETRY_INTERVAL = 60
    lost = Cell.objects.create(id=str(uuid4()), name="bad", database_url=f"sqlite:///{tmp_path}/lost.sqlite3")
    assert isinstance(scatter.ask_one(lost, ask), scatter.CellFailure)
    assert os.listdir(tmp_path) == []


def test_a_cell_that_lets_no_new_connection_in_stays_down_while_old_ones_work(cells, road, settings):
    """It was up for a look over an old connection, down for the next request, and so on, every second."""
    settings.CELL_RETRY_INTERVAL = 0.2
    cell = Cell.objects.create(id=str(uuid4()), name="bad", database_url=road.straight)
    assert scatter.ask_one(cell, ask) == "bad"  # and the connection is kept
    admin = f"{road.server.url}/postgres"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("ALTER DATABASE cell ALLOW_CONNECTIONS false")
        try:
            circuit_breaker.record_failure(cell.id, "refused: too many connections")
            until(lambda: circuit_breaker.outage(cell.id).looks > 4)
            assert circuit_breaker.known_down(cell.id) == "refused: the server starts or stops"
        finally:
            connection.execute("ALTER DATABASE cell ALLOW_CONNECTIONS true")
    until(lambda: not circuit_breaker.known_down(cell.id))


def look_now(cell: Cell) -> None:
    """The time of the next look has come."""
    with circuit_breaker._changed:
        circuit_breaker._down[cell.id] = circuit_breaker.Outage(circuit_breaker._down[cell.id].reason)
        circuit_breaker._changed.notify_all()


def until(is_so: Callable[[], bool]) -> None:
    """Within a generous time."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
