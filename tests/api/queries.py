"""Counting queries by database, in whatever thread they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from django.db.backends.utils import CursorWrapper


@contextmanager
def counted() -> Iterator[dict[str, list[tuple[str, int]]]]:
    """(SQL, number of parameters) of every query, by database alias."""
    seen: dict[str, list[tuple[str, int]]] = defaultdict(list)
    original = CursorWrapper._execute_with_wrappers

    def execute(self, sql, params, many, executor):
        seen[self.db.alias].append((sql, len(params or ())))
        return original(self, sql, params, many, executor)

    with mock.patch.object(CursorWrapper, "_execute_with_wrappers", execute):
        yield seen
