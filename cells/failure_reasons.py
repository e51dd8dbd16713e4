"""Why a cell's database does not answer, in operators' terms: missing, refused, silent, damaged, wrong password, TLS.

The error of a failed connection has no code (libpq gives none), so the texts of the drivers are matched. An unknown
text is shown as it is.
"""

from __future__ import annotations

import re

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from cells.database_urls import BadDatabaseUrl
from cells.sqlite import base as sqlite
from cloud.tls import failures

SILENT = "silent: did not answer in time"
LOCKED = "silent: its tables are locked"
CUT = "refused: the connection was cut"
STARTS = "refused: the server starts or stops"
NO_TABLES = "missing: the cell has no tables yet, run cell_migrate"
DAMAGED = "damaged: "
_LONGEST = 120  # characters shown of an unknown text

_BY_CODE = {  # SQLSTATE: PostgreSQL, appendix A
    "42P01": NO_TABLES, "55P03": LOCKED, "57014": SILENT,
    "3D000": "missing: the server has no such database",
    "28P01": "wrong password", "28000": "wrong password: the server does not let this user in",
    "57P01": CUT, "57P02": CUT, "57P03": STARTS,
    "53100": "refused: its disk is full", "53300": "refused: too many connections",
    "58030": f"{DAMAGED}I/O error", "XX001": f"{DAMAGED}data corrupted", "XX002": f"{DAMAGED}index corrupted",
}  # fmt: skip
_BY_TEXT = [
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (re.escape(sqlite.MISSING), "missing: there is no such file"),
        (re.escape(sqlite.UNREADABLE), "refused: the file cannot be opened"),
        ("unable to open database file", "refused: the file cannot be opened"),
        ("readonly database", "refused: the file is read-only"),
        ("disk is full|No space left", "refused: its disk is full"),
        ("database (table )?is locked", LOCKED),
        ("disk image is malformed|file is not a database|disk I/O error", f"{DAMAGED}{{}}"),
        ("no such table", NO_TABLES),
        ("password authentication failed|no password supplied|password is required", "wrong password"),
        ("no pg_hba.conf entry|authentication failed", "wrong password: the server does not let this user in"),
        ('role ".*" does not exist', "wrong password: the server has no such user"),
        ('database ".*" does not exist', "missing: the server has no such database"),
        ("resolve host|translate host name|Name or service not known", "missing: no machine has this name"),
        ("too many (clients|connections)|connection slots", "refused: too many connections"),
        ("starting up|shutting down|recovery mode|not (yet|currently) accepting", STARTS),
        ("Connection refused|No such file or directory", "refused: nothing listens there"),
        ("No route to host|unreachable", "refused: no way to its machine"),
        ("timeout expired|timed out|connection timeout", SILENT),
        ("closed the connection|connection reset|terminating connection|connection is closed|connection is lost", CUT),
    )
]


def describe(error: BaseException) -> str:
    """Return one line that begins with the kind of the failure."""
    if isinstance(error, (BadDatabaseUrl, ImproperlyConfigured)):
        return f"wrong URL: {_short(error)}"
    code = str(getattr(error.__cause__, "sqlstate", "") or "")
    if code in _BY_CODE:
        return _BY_CODE[code]
    if reason := failures.describe(error):
        return reason
    text = str(error)
    for pattern, reason in _BY_TEXT:
        if pattern.search(text):
            return reason.format(_short(error))
    return f"failed: {_short(error)}"


def kind(reason: str) -> str:
    """Return the kind of a reason: its part before the colon. What follows may differ for the same failure."""
    return reason.partition(":")[0]


def is_database_failure(error: DatabaseError) -> bool:
    """Return True for an error that is no OperationalError and is caused by the database, not by the query."""
    reason = describe(error)
    return reason == NO_TABLES or reason.startswith(DAMAGED)


def _short(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:_LONGEST]
