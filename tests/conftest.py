"""What every test may use: cells on the test databases, API clients, and a cloud driven by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase
from rest_framework.test import APIClient

from cells import circuit_breaker, outages
from cells.models import Cell
from cloud.caller import Caller
from tests import databases
from tests.byhand import Cloud

PROJECT, OTHER_PROJECT = "a" * 32, "b" * 32


# Who dies when, who is first, who waits for a guest, what a cell can suffer from: hundreds of moments of each, so not
# in `make test-fast`.
WEATHER = re.compile(
    r"kill|races?\b|_race|waiting|host_shutdown|host_guests|delete_graces|flow/test_shutdown_words|unit/test_shutdown_watcher|"
    r"virt/test_shutdown|flow/test_(emptying|evacuate|migrations|gone)\.py|cells/test_trouble|api/test_down_cell_table"
)
STORIES = tuple(f"tests/{name}/" for name in ("flow", "admin", "identity", "images", "management"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """See below."""
    parser.addoption("--moments", type=int, default=1, help="of each of the tests of weather, one in so many")
    parser.addoption("--stories", type=int, default=1, help="of tests/flow and its like, one in so many")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that uses cells needs all databases, committed: cells are asked from other threads.

    `--moments 4`: of the moments a test of weather is played at, every fourth; which ones is in their names, so it is
    the same ones every time. `--stories 8`: of the stories of `tests/flow`, and of the tests of pages, logins, images
    and commands, which are much alike, every eighth. Races are all there.
    """
    for item in items:
        if WEATHER.search(item.nodeid) and not item.nodeid.startswith("tests/test_"):
            item.add_marker(pytest.mark.weather)
        if "race" in item.nodeid:
            item.add_marker(pytest.mark.race)
        if "cells" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases="__all__"))
    moments, stories = config.getoption("--moments"), config.getoption("--stories")
    gone = {
        item for item in items
        if not (_is_chosen(item, moments, _is_a_moment) and _is_chosen(item, stories, _is_a_story))
    }  # fmt: skip
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


def _is_chosen(item: pytest.Item, one_in: int, concerns: Callable[[pytest.Item], bool]) -> bool:
    return not concerns(item) or crc32(item.nodeid.encode()) % one_in == 0


def _is_a_moment(item: pytest.Item) -> bool:
    markers = {marker.name for marker in item.iter_markers()}
    return "weather" in markers and "race" not in markers and hasattr(item, "callspec")


def _is_a_story(item: pytest.Item) -> bool:
    return item.nodeid.startswith(STORIES) and item.get_closest_marker("race") is None


@pytest.fixture(autouse=True)
def _no_database_in_secret(request: pytest.FixtureRequest) -> Iterator[None]:
    """`make test-postgres` leaves out the tests that use none."""

    def refuse(connection: BaseDatabaseWrapper) -> None:
        raise AssertionError(f"{request.node.nodeid} opens the database {connection.alias} and is not marked so")

    with pytest.MonkeyPatch.context() as patch:
        if not databases.used_by(request.node):
            patch.setattr(BaseDatabaseWrapper, "connect", refuse)
        yield


def connections_are_kept(case: TransactionTestCase) -> bool:
    """Django would open all of them anew for every test, which with PostgreSQL costs as much as many a test."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            connection.close()
        else:
            connection.close_if_unusable_or_obsolete()
    return False


TransactionTestCase._should_reload_connections = connections_are_kept


def url_of(alias: str) -> str:
    """The URL of a test database that exists already."""
    known = connections[alias].settings_dict
    if "sqlite" in known["ENGINE"]:
        return f"sqlite:///{known['NAME']}"
    password = f":{quote(known['PASSWORD'])}" if known["PASSWORD"] else ""
    return f"postgresql://{known['USER']}{password}@{known['HOST']}:{known['PORT']}/{known['NAME']}"


@pytest.fixture
def cells(request: pytest.FixtureRequest) -> Iterator[dict[str, Cell]]:
    """cell0, cell1 and cell2, as rows that point to the test databases."""
    request.getfixturevalue("transactional_db")
    forget_outages()
    rows = {
        name: Cell.objects.create(id=uuid, name=name, database_url=url_of(f"cell:{uuid}"))
        for name, uuid in django_settings.CELLS.items()
    }
    yield rows
    forget_outages()


def forget_outages() -> None:
    """What this process learned of cells. No thread is left that would write of it."""
    with circuit_breaker._changed:
        for memory in (circuit_breaker._down, circuit_breaker._lately, outages._open, outages._ended, outages._news):
            memory.clear()
        circuit_breaker._changed.notify_all()
        thread = circuit_breaker._thread
    if thread is not None:
        thread.join(30)


@pytest.fixture(scope="session", autouse=True)
def _no_thread_holds_a_test_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """PostgreSQL does not drop a database somebody is connected to: the pools' threads are, and breakers come back."""
    yield
    for alias in django_settings.DATABASES:
        connection = connections[alias]
        name = str(connection.settings_dict["NAME"])
        if connection.vendor == "postgresql" and name.startswith("test_"):
            connection.close()
            with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
                cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
                cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])


class Api(APIClient):
    """A client of the Compute API: `api.get("/servers", version="2.96")`."""

    def generic(self, method: str, path: str, *args: Any, version: str = "2.96", **extra: Any) -> Any:
        """Adds the prefix and the microversion."""
        if not path.startswith(("/compute", "/identity", "/image", "/admin", "/healthz", "/readyz")):
            path = f"/compute/v2.1{path}"
        if version:
            extra.setdefault("HTTP_OPENSTACK_API_VERSION", f"compute {version}")
        return super().generic(method, path, *args, **extra)

    def send(self, method: str, path: str, body: Any = None, **extra: Any) -> Any:
        """A request with a JSON body."""
        return getattr(self, method)(path, body, format="json", **extra)


def client(*roles: str, project: str = PROJECT, user: str = "") -> Api:
    """A client with these roles in a project."""
    api = Api()
    caller = Caller(user or f"user-of-{project[:4]}", "someone", project, "a project", frozenset(roles))
    api.force_authenticate(user=caller)
    api.caller = caller
    return api


@pytest.fixture
def api(cells: dict[str, Cell]) -> Api:
    """A member of PROJECT."""
    return client("member")


@pytest.fixture
def reader(cells: dict[str, Cell]) -> Api:
    """A reader of PROJECT."""
    return client("reader")


@pytest.fixture
def stranger(cells: dict[str, Cell]) -> Api:
    """A member of another project."""
    return client("member", project=OTHER_PROJECT)


@pytest.fixture
def admin(cells: dict[str, Cell]) -> Api:
    """An admin."""
    return client("admin", project="c" * 32)


@pytest.fixture
def cloud(cells: dict[str, Cell], live_server: Any, settings: Any) -> Cloud:
    """Two hosts (host1 in cell1, host2 in cell2), flavors and an image; `cloud.work()` does what is due.

    The API also runs on a real port, because that is where hosts fetch images from.
    """
    settings.PUBLIC_URL = live_server.url
    return Cloud(cells)
