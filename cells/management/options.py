"""What the manage.py commands share: options, the choice of a cell, checks of its URLs, tables, exit codes."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections
from kombu.transport import TRANSPORT_ALIASES

from cells import tls_warnings
from cells.database_urls import BadDatabaseUrl, config
from cells.models import Cell
from cloud import env
from cloud.terminal import Rows, TerminalConsole

DATABASE_VARIABLE = "STILLWATER_NEW_CELL_DATABASE_URL"
BROKER_VARIABLE = "STILLWATER_NEW_CELL_BROKER_URL"
CELL0_DISABLED = "cell0 cannot be disabled: it takes no new servers anyway."


def add_uuid(parser: CommandParser, meaning: str = "The cell, by its UUID.") -> None:
    """Add `--uuid`. The parser does not require it, because it would exit with its own code."""
    parser.add_argument("--uuid", default="", help=meaning)


def add_json(parser: CommandParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="Print one JSON document instead of a table.")


def add_max_count(parser: CommandParser, what: str) -> None:
    """Add `--max-count`. `read_max_count` checks the value, because the parser would exit with its own code."""
    parser.add_argument("--max-count", help=f"Most {what} in this run; default: all.")


def read_max_count(command: BaseCommand, given: str | int | None) -> int | None:
    """Return the positive number, or None when it is not given; exit with 127 for anything else."""
    if given is None:
        return None
    if not str(given).isdecimal() or int(given) < 1:
        exit_with(command, 127, "--max-count must be a positive number.")
    return int(given)


def find_cell(uuid: str = "", name: str = "") -> Cell | None:
    """Return the cell with this UUID and, if given, this name; None when there is none."""
    wanted = {key: value for key, value in (("id", uuid.lower()), ("name", name)) if value}
    return Cell.objects.filter(**wanted).first() if wanted else None


def require_cell(command: BaseCommand, uuid: str = "", name: str = "", *, code: int = 1) -> Cell:
    """Return the cell, or exit with `code`."""
    cell = find_cell(uuid, name)
    if cell is None:
        exit_with(command, code, f"There is no cell {uuid or name or '(give --uuid)'}.")
    return cell


def select_cells(command: BaseCommand, uuid: str = "", name: str = "") -> list[Cell]:
    """Return the named cell, or all cells when none is named."""
    return [require_cell(command, uuid, name)] if uuid or name else list(Cell.objects.order_by("name"))


def read_database_url(command: BaseCommand, given: str, *, cell_id: str, invalid: int, taken: int) -> str:
    """Return the URL for a cell's database, or exit with `invalid`, or `taken` when another database is the same."""
    url = _from_environment(given, DATABASE_VARIABLE) or exit_with(command, invalid, "No database URL is given.")
    try:
        wanted = _database_identity(url)
    except BadDatabaseUrl as exc:
        exit_with(command, invalid, f"The database URL is not valid: {exc}.")
    user = "the global database" if wanted == _identity(connections.databases["default"]) else ""
    for cell in Cell.objects.exclude(pk=cell_id):
        try:
            user = f"cell {cell.name}" if not user and _database_identity(cell.database_url) == wanted else user
        except BadDatabaseUrl:  # it uses none
            continue
    if user:
        exit_with(command, taken, f"The database is that of {user} already.")
    _warn(command, "database", tls_warnings.database_warning(url))
    return url


def read_broker_url(command: BaseCommand, given: str, cell: Cell, *, invalid: int) -> str:
    """Return the URL for a cell's broker, or exit with `invalid`. cell0 needs none."""
    url = _from_environment(given, BROKER_VARIABLE)
    if not url and not cell.is_cell0:
        exit_with(command, invalid, "No broker URL is given.")
    if url and urlsplit(url).scheme not in TRANSPORT_ALIASES:
        exit_with(command, invalid, "The broker URL is not valid: use redis://… or amqp://….")
    _warn(command, "broker", tls_warnings.broker_warning(url))
    return url


def operator_name() -> str:
    """Return user@machine of the operator, for the record; with sudo, the user behind it."""
    try:
        user = env.invoking_user() or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def print_json(command: BaseCommand, document: Any) -> None:
    """Print one JSON document."""
    command.stdout.write(json.dumps(document, indent=2, default=str))


def print_table(command: BaseCommand, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table."""
    TerminalConsole(command.stdout).print(Rows(columns, rows))


def exit_with(command: BaseCommand, code: int, sentence: str) -> NoReturn:
    """Print one sentence on standard error and exit with `code`."""
    command.stderr.write(sentence)
    sys.exit(code)


def _warn(command: BaseCommand, what: str, warning: str) -> None:
    if warning:
        command.stderr.write(f"Warning: the URL of the {what} is not safe: {warning}.")


def _from_environment(given: str, variable: str) -> str:
    """Return the given URL, or the variable's value for "-": all users of the machine can see arguments."""
    return str(env.get(variable)) if given == "-" else given


def _database_identity(url: str) -> tuple[str, ...]:
    return _identity(config(url))


def _identity(database: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(database.get(key) or "") for key in ("ENGINE", "NAME", "HOST", "PORT"))
