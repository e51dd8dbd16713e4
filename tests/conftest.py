"""What every test may use: cells on the test databases, API clients, and a cloud driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase
from rest_framework.test import APIClient

from cells import circuit_breaker, outages
from cells.models import Cell
from cloud.caller import Caller
from tests import databases, sampling
from tests.byhand import Cloud
from tests.summary import Summary

PROJECT, OTHER_PROJECT = "a" * 32, "b" * 32


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of sampling."""
    sampling.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Have tests sampled, the run end with its summary, and hypothesis accept a busy machine."""
    config.pluginmanager.register(Summary(config))
    # how long an example takes says something of the machine's load, nothing of the test
    hypothesis.settings.register_profile("busy", suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("busy")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests. One that uses cells needs all databases, committed: cells are asked from other threads."""
    for item in items:
        sampling.mark(item)
        if "cells" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.django_db(transaction=True, databases="__all__"))


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
