"""Cells of the test run, and a way to run commands."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from cells.models import Cell
from tests.conftest import forget_outages

NOWHERE = "sqlite:////proc/nowhere/x.sqlite3"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(db) -> Callable[..., Ended]:
    """Runs a manage.py command; its exit code and what it said."""

    def run_command(name: str, *words: str) -> Ended:
        out, err = io.StringIO(), io.StringIO()
        try:
            call_command(name, *words, stdout=out, stderr=err)
        except SystemExit as end:
            return Ended(int(end.code or 0), out.getvalue(), err.getvalue())
        return Ended(0, out.getvalue(), err.getvalue())

    return run_command


@pytest.fixture
def lost(cells) -> Cell:
    """A cell whose database is away. Its id is new: threads remember the databases of earlier tests."""
    return Cell.objects.create(
        id=str(uuid4()),
        name="lost",
        database_url=NOWHERE,
        broker_url="memory://lost",
    )


@pytest.fixture(autouse=True)
def _no_memories(monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any) -> Iterator[None]:
    """What a test learned about cells ends with it: their health, and databases made known by it.

    Django's test case forbids databases it did not know when the test began; here they are the point.
    """
    known = set(connections.databases)
    forget_outages()
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", django_db_blocker._real_ensure_connection)
    yield
    forget_outages()
    for alias in set(connections.databases) - known:
        connections[alias].close()
        del connections[alias], connections.databases[alias]


@pytest.fixture
def fresh_url(tmp_path: Path) -> str:
    """A database that is not there yet."""
    return f"sqlite:///{tmp_path / 'fresh.sqlite3'}"
