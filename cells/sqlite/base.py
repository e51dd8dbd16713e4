"""The connection to a cell's SQLite file. Django requires the names of this module and of `DatabaseWrapper`.

SQLite creates a missing file: a worker whose database was moved away worked on with an empty one and spoiled the WAL
that was left behind. SQLite also goes on to read and write a moved file under its new name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from django.db.backends.sqlite3 import base, creation

MISSING = "the file of the cell's database is missing"
UNREADABLE = "the file of the cell's database cannot be opened"
File = tuple[int, int]  # device and inode


def create_file(name: str) -> None:
    """Create an empty file, in which `migrate` makes the tables; a no-op when it exists. Raises OSError."""
    os.close(os.open(name, os.O_CREAT | os.O_RDWR, 0o644))


class DatabaseCreation(creation.DatabaseCreation):
    """The creation of test databases: the only place besides `cell_migrate` that creates a file."""

    def _create_test_db(self, verbosity: int, autoclobber: bool, keepdb: bool = False) -> str:
        name: str = super()._create_test_db(verbosity, autoclobber, keepdb)  # type: ignore[misc]  # not in the stubs
        create_file(name)
        return name


class Cursor(base.SQLiteCursorWrapper):
    """A cursor that turns Django's `%s` into `?` once per statement: for a long one it takes as long as its query."""

    def convert_query(self, query: str, *, param_names: Sequence[str] | None = None) -> str:
        """Return the statement with the placeholders of SQLite."""
        if param_names is not None:
            return super().convert_query(query, param_names=param_names)
        return _with_question_marks(query)


@lru_cache(maxsize=512)
def _with_question_marks(query: str) -> str:
    found: str = base.SQLiteCursorWrapper.convert_query(None, query)  # type: ignore[arg-type]  # it needs no cursor
    return found


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection that closes when its file is no longer the one at its path."""

    creation_class = DatabaseCreation
    _opened: File | None = None

    def get_connection_params(self) -> dict[str, Any]:
        """Add a URI that says: read and write, do not create (https://www.sqlite.org/uri.html)."""
        params: dict[str, Any] = super().get_connection_params()
        return params | {"database": f"file:{quote(self._name)}?mode=rw"}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Open the file. Raises OperationalError, also when it is missing."""
        try:
            self._opened = _identity(self._name)  # before opening: the next use notices a file replaced in between
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self.Database.OperationalError(MISSING) from error
        except OSError as error:
            raise self.Database.OperationalError(f"{UNREADABLE}: {error.strerror}") from error
        return super().get_new_connection(conn_params)

    def create_cursor(self, name: str | None = None) -> Any:
        """Return a new cursor."""
        return self.connection.cursor(factory=Cursor)

    def ensure_connection(self) -> None:
        """Close a moved file, then connect. Django calls this before each use."""
        self._close_if_moved()
        super().ensure_connection()

    def close_if_unusable_or_obsolete(self) -> None:
        """Close a moved file between requests, and raise nothing.

        Django's method opens a connection to ask whether it is in autocommit, so it would raise.
        """
        self._close_if_moved()
        super().close_if_unusable_or_obsolete()

    def is_usable(self) -> bool:
        """Return False: after "disk I/O error" a handle may fail for ever, and a new one is cheap."""
        return False

    def _close_if_moved(self) -> None:
        """Close it, but not inside a transaction or just after its COMMIT: it ends in the file it began in."""
        is_free = self.autocommit and not self.in_atomic_block
        if self.connection is not None and is_free and self._has_moved():
            self.close()  # SQLite itself leaves the WAL alone when the file has moved

    def _has_moved(self) -> bool:
        try:
            return self._opened != _identity(self._name)
        except OSError:
            return True

    @property
    def _name(self) -> str:
        return str(self.settings_dict["NAME"])


def _identity(name: str) -> File:
    found = os.stat(name)
    return found.st_dev, found.st_ino
