"""Shared by the commands about cells: select a cell, check URLs, exit with a code."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from typing import Any, NoReturn
from urllib.parse import urlsplit

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections
from kombu.transport import TRANSPORT_ALIASES

from cells.database_urls import BadDatabaseUrl, config
from cells.models import Cell
from cloud import env

DATABASE_VARIABLE = "STILLWATER_NEW_CELL_DATABASE_URL"
BROKER_VARIABLE = "STILLWATER_NEW_CELL_BROKER_URL"


def add_uuid(parser: CommandParser, meaning: str = "The cell, by its UUID.") -> None:
    """Add `--uuid`. The parser does not require it, because it would exit with its own code."""
    parser.add_argument("--uuid", default="", help=meaning)


def add_max_count(parser: CommandParser, what: str) -> None:
    """Add `--max-count`. `max_count` checks the value, because the parser would exit with its own code."""
    parser.add_argument("--max-count", help=f"Most {what} in this run; default: all.")


def max_count(command: BaseCommand, given: str | int | None) -> int | None:
    """Return the positive number, or None when it is not given; exit with 127 for anything else."""
    if given is None:
        return None
    if not str(given).isdecimal() or int(given) < 1:
        end(command, 127, "--max-count must be a positive number.")
    return int(given)


def find_cell(uuid: str = "", name: str = "") -> Cell | None:
    """Return the cell with this UUID and, if given, this name; None when there is none."""
    wanted = {key: value for key, value in (("id", uuid.lower()), ("name", name)) if value}
    return Cell.objects.filter(**wanted).first() if wanted else None


def cell_or_end(command: BaseCommand, uuid: str = "", name: str = "", *, code: int = 1) -> Cell:
    """Return the cell, or exit with `code`."""
    cell = find_cell(uuid, name)
    if cell is None:
        end(command, code, f"There is no cell {uuid or name or '(give --uuid)'}.")
    return cell


def chosen_cells(command: BaseCommand, uuid: str = "", name: str = "") -> list[Cell]:
    """Return the named cell, or all cells when none is named."""
    return [cell_or_end(command, uuid, name)] if uuid or name else list(Cell.objects.order_by("name"))


def end(command: BaseCommand, code: int, sentence: str) -> NoReturn:
    """Print one sentence on standard error and exit with `code`."""
    command.stderr.write(sentence)
    sys.exit(code)


def who() -> str:
    """Return user@machine of the operator, for the record; with sudo, the user behind it."""
    try:
        user = env.invoking_user() or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def from_environment(given: str | None, variable: str) -> str:
    """Return the given URL, or the variable's value for "-": all users of the machine can see arguments."""
    return str(env.get(variable)) if given == "-" else (given or "")


def database_fault(url: str) -> str:
    """Return what is wrong with a cell's database URL; "" when nothing is."""
    if not url:
        return "No database URL is given."
    try:
        config(url)
    except BadDatabaseUrl as exc:
        return f"The database URL is not valid: {exc}."
    return ""


def broker_fault(url: str) -> str:
    """Return what is wrong with a cell's broker URL; "" when nothing is."""
    if not url:
        return "No broker URL is given."
    scheme = urlsplit(url).scheme
    if scheme and scheme in TRANSPORT_ALIASES:
        return ""
    return "The broker URL is not valid: use redis://… or amqp://…."


def same_database(url: str, *, but: str = "") -> str:
    """Return what uses this database already: "cell NAME", "the global database", or ""."""
    wanted = _place(config(url))
    if wanted == _place(connections.databases["default"]):
        return "the global database"
    for cell in Cell.objects.exclude(pk=but):
        if not database_fault(cell.database_url) and _place(config(cell.database_url)) == wanted:
            return f"cell {cell.name}"
    return ""


def _place(database: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(database.get(key) or "") for key in ("ENGINE", "NAME", "HOST", "PORT"))
