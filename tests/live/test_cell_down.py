"""One cell's PostgreSQL goes away under real processes: nobody exceeds a quota, everything starts, all comes back."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench.proxy import Proxy
from deploy.local import workers
from deploy.local.envfiles import database_variable
from deploy.local.state import CELL0, DATABASES
from tasks import worker_process as processes
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Answer, Api, ask
from tests.servers import postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
QUOTA, ASKED = 20, 50
INTERVAL = 2.0  # between looks at a cell that is down
SOON = 5 * INTERVAL  # on a machine that has more to do
PREFIX = "/compute/v2.1"


class Site:
    """A cloud on PostgreSQL; the roads to cell0 and cell1 can be broken."""

    def __init__(self, cloud: Cloud, server: postgres.Server, roads: dict[str, Proxy]) -> None:
        self.cloud, self.server, self.roads = cloud, server, roads
        sdk = cloud.sdk()
        self.headers = {"X_Auth_Token": sdk.auth_token, "OpenStack_API_Version": "compute 2.96"}
        self.image = next(image.id for image in sdk.image.images() if image.name == "micro")

    def ask(self, path: str, method: str = "GET", body: Any = None, port: int = 0) -> Answer:
        """The user demo's request."""
        return ask(port or self.cloud.port, PREFIX + path, method, body, **self.headers)

    def boot(self, name: str, port: int = 0) -> Answer:
        """One server more, if it may be."""
        server = {"name": name, "imageRef": self.image, "flavorRef": "42", "networks": "none"}
        return self.ask("/servers", "POST", {"server": server}, port)

    def servers(self, port: int = 0) -> dict[str, str]:
        """How each is listed."""
        return {one["id"]: one["status"] for one in self.ask("/servers/detail", port=port).json["servers"]}

    def all_is_known(self, *ports: int) -> bool:
        """To whichever process answers."""
        return all("UNKNOWN" not in self.servers(port).values() for port in (*ports, 0) for _ in range(4))

    def straight(self, question: str, database: str = "global") -> list[tuple[Any, ...]]:
        """Past the roads."""
        with psycopg.connect(f"{self.server.url}/{database}", autocommit=True) as connection:
            found = connection.execute(question.encode())
            return found.fetchall() if found.description else []

    def hosts_of(self, ids: list[str]) -> set[str]:
        """Where servers are."""
        found: set[str] = set()
        for cell in ("cell1", "cell2"):
            rows = self.straight("SELECT uuid, host FROM compute_instance WHERE NOT deleted", cell)
            found |= {host for uuid, host in rows if uuid in ids}
        return found

    @contextmanager
    def wrong_url(self, cell_id: str) -> Iterator[None]:
        """Somebody mistyped the URL of a cell's database."""
        update = "UPDATE cells_cell SET database_url = '{}' WHERE id = '{}'"
        ((right,),) = self.straight(f"SELECT database_url FROM cells_cell WHERE id = '{cell_id}'")
        self.straight(update.format("carrier-pigeon://loft", cell_id))
        try:
            yield
        finally:
            self.straight(update.format(right, cell_id))

    def age(self, host: str) -> float:
        """Seconds since the last heartbeat of a process of cell1."""
        question = f"SELECT extract(epoch FROM now() - last_seen_up) FROM compute_service WHERE host = '{host}'"
        return float(self.straight(question, "cell1")[0][0])

    def empty(self) -> None:
        """Nobody's servers are left."""
        for uuid in self.servers():
            self.ask(f"/servers/{uuid}", "DELETE")
        eventually("no servers", lambda: not books.settled(self.cloud), 60)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Short looks and deadlines; nothing else differs from a user's."""
    with ExitStack() as ends:
        server = postgres.Server(*postgres.FORGETFUL)
        ends.callback(server.remove)
        ends.callback(server.stop)
        server.start()
        for name in DATABASES:
            server.create(name)
        roads = {name: Proxy(server.port) for name in ("cell0", "cell1")}
        for road in roads.values():
            ends.callback(road.end)
        urls = {database_variable(name): f"{server.url}/{name}" for name in DATABASES}
        for name, road in roads.items():
            variable = database_variable(name)
            urls[variable] = urls[variable].replace(f":{server.port}/", f":{road.port}/")
        patience = {"STILLWATER_CELL_TIMEOUT": "1", "STILLWATER_CELL_RETRY_INTERVAL": f"{INTERVAL:g}"}
        cloud = ends.enter_context(Cloud("fake", **urls, **patience))
        found = Site(cloud, server, roads)
        cloud.sdk(admin=True).set_compute_quotas("demo", instances=QUOTA, cores=-1, ram=-1)
        yield found


class Lives:
    """Processes of the cloud that are killed and started, and what they log from then on."""

    def __init__(self, cloud: Cloud, *names: str) -> None:
        self.cloud, self.names = cloud, names
        self._before = {name: len(cloud.log(name)) for name in names}

    def end(self) -> None:
        """By SIGKILL."""
        for name in self.names:
            self.cloud.kill(name, signal.SIGKILL)

    def begin(self) -> None:
        """All at once, and without waiting for a heartbeat."""
        state = self.cloud.state
        nodes = [workers.process(state, node) for node in workers.nodes(state) if node.name in self.names]
        assert processes.start(nodes, state.directory) == nodes

    def wait(self, event: str, *names: str, seconds: float = 60) -> None:
        """Until each has logged it."""
        for name in names:
            eventually(f"{event} of {name}", lambda n=name: event in self.cloud.log(n)[self._before[n] :], seconds)


@pytest.fixture
def extra(site: Site, tmp_path: Path) -> Iterator[Callable[..., Api]]:
    """Starts one API more, with settings of its own."""
    with ExitStack() as ends:

        def start(**settings: str) -> Api:
            api = Api(site.cloud, tmp_path / "api.log", **settings)
            ends.callback(api.end)
            return api.wait_until_ready()

        yield start


@pytest.fixture
def api(site: Site, extra: Callable[..., Api], request: pytest.FixtureRequest) -> int:
    """The port of an API that counts as it is told; the cloud's own counts on the global side."""
    if request.param == "api":
        return site.cloud.port
    return extra(STILLWATER_QUOTA_COUNT_FROM=request.param).port


@pytest.fixture
def lives(site: Site, monkeypatch: pytest.MonkeyPatch) -> Lives:
    """Of one process of each role, and of the cell that is harmed."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)  # pytest-django's are not the product's
    return Lives(site.cloud, "scheduler", "conductor-cell1", "conductor-cell2", "host1")


@pytest.fixture(autouse=True)
def _mended_and_empty(site: Site) -> Iterator[None]:
    yield
    for road in site.roads.values():
        road.order("up")
    site.empty()


@pytest.mark.parametrize(("api", "harm"), [("api", "silent"), ("cells", "refuse")], indirect=["api"])
def test_fifty_boots_while_a_cell_goes_away_do_not_exceed_the_quota_and_all_comes_back(site, api, harm):
    counts_cells = api != site.cloud.port
    pids = site.cloud.pids()
    first = [site.boot(f"first{number}", api).json["server"]["id"] for number in range(4)]
    books.settled(site.cloud)
    assert "host1" in site.hosts_of(first)

    answers = fifty(site, api, harm)

    accepted = [answer.json["server"]["id"] for answer in answers if answer.status == 202]
    refused = [answer.text for answer in answers if answer.status != 202]
    assert Counter(answer.status for answer in answers).keys() <= {202, 403}, Counter(refused)
    assert len(first) + len(accepted) <= QUOTA
    if counts_cells:
        assert any("in a cell that does not answer now (cell1)" in text for text in refused), set(refused)
        assert "in a cell that does not answer now (cell1)" in site.boot("more", api).text
    else:
        assert len(first) + len(accepted) == QUOTA
        assert all("Quota exceeded for instances" in text for text in refused)
    listed = site.servers(api)
    assert set(listed) == {*first, *accepted}
    there = next(uuid for uuid in first if listed[uuid] == "UNKNOWN")
    assert site.ask(f"/servers/{there}", "DELETE").status == 204
    assert there not in site.servers()
    if not counts_cells:  # its place is another one's, at once and once
        assert sorted(site.boot(f"last{number}").status for number in range(2)) == [202, 403]

    site.roads["cell1"].order("up")
    back = site.straight("SELECT now()")[0][0]
    comes_back(site, api, there, back)

    living = books.settled(site.cloud, 60)
    books.check(site.cloud)
    expected = {*first, *accepted} - {there}
    assert expected <= {row.uuid for row in living}
    assert len(living) == len(expected) + (not counts_cells) <= QUOTA
    assert site.cloud.pids() == pids
    site.empty()
    more = [site.boot(f"more{number}", api).json["server"]["id"] for number in range(4)]
    books.settled(site.cloud)
    assert "host1" in site.hosts_of(more)


def fifty(site: Site, port: int, harm: str) -> list[Answer]:
    """At once; the cell goes away once a few are accepted."""
    accepted, go = threading.Semaphore(0), threading.Barrier(ASKED)

    def boot(number: int) -> Answer:
        go.wait(60)
        answer = site.boot(f"n{number}", port)
        if answer.status == 202:
            accepted.release()
        return answer

    with ThreadPoolExecutor(ASKED) as clients:
        asked = [clients.submit(boot, number) for number in range(ASKED)]
        for _ in range(3):
            assert accepted.acquire(timeout=60)
        site.roads["cell1"].order(harm)
        return [one.result(120) for one in asked]


def comes_back(site: Site, port: int, deleted: str, back: Any) -> None:
    """In every process, by itself."""
    begun = time.monotonic()
    eventually("whole lists of every process", lambda: site.all_is_known(port), SOON)
    gone = f"SELECT 1 FROM compute_instance WHERE uuid = '{deleted}' AND (deleted OR task_state = 'deleting')"
    eventually("the kept delete is carried out", lambda: site.straight(gone, "cell1"), SOON)
    for host in ("host1", "conductor-cell1"):
        eventually(f"a heartbeat of {host}", lambda host=host: site.age(host) < time.monotonic() - begun, SOON)
    swept = f"SELECT 1 FROM cells_cell WHERE name = 'cell1' AND swept_at > '{back.isoformat()}'"
    eventually("last known states are kept up again", lambda: site.straight(swept), SOON)


def test_everything_starts_while_cells_are_down(site, lives, extra):
    """cell0 has a wrong URL, cell1 takes connections and says nothing."""
    site.roads["cell1"].order("silent")
    with site.wrong_url(CELL0):
        lives.end()
        lives.begin()
        port = extra().port
        lives.wait("worker.ready", "scheduler", "conductor-cell2")
        placed = site.boot("meanwhile", port).json["server"]["id"]
        eventually("it is built", lambda: site.servers(port).get(placed) == "ACTIVE")
        assert site.hosts_of([placed]) == {"host2"}
        lives.wait("worker.startup_postponed", "conductor-cell1", "host1")
        lives.wait("heartbeat.database_unavailable", "scheduler")
    pids = site.cloud.pids()
    assert all(pids.values())

    site.roads["cell1"].order("up")

    lives.wait("worker.ready", "conductor-cell1", "host1", seconds=SOON)
    lives.wait("heartbeat.restored", "scheduler", seconds=SOON)
    more = [site.boot(f"after{number}", port).json["server"]["id"] for number in range(4)]
    books.settled(site.cloud)
    assert "host1" in site.hosts_of(more)
    assert site.cloud.pids() == pids
