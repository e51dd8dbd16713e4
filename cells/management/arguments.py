"""What the commands about cells share: naming a cell, checking URLs, ending with a code."""

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
    """`--uuid`. Not required by the parser, which would end with its own code."""
    parser.add_argument("--uuid", default="", help=meaning)


def add_max_count(parser: CommandParser, what: str) -> None:
    """`--max-count`. Its value is checked by `max_count`: the parser would end with its own code."""
    parser.add_argument("--max-count", help=f"Most {what} in this run; default: all.")


def max_count(command: BaseCommand, given: str | int | None) -> int | None:
    """A positive number, None when it is not given, or the end of the command with 127."""
    if given is None:
        return None
    if not str(given).isdecimal() or int(given) < 1:
        end(command, 127, "--max-count must be a positive number.")
    return int(given)


def find_cell(uuid: str = "", name: str = "") -> Cell | None:
    """The cell with this UUID and, if given, this name."""
    wanted = {key: value for key, value in (("id", uuid.lower()), ("name", name)) if value}
    return Cell.objects.filter(**wanted).first() if wanted else None


def cell_or_end(command: BaseCommand, uuid: str = "", name: str = "", *, code: int = 1) -> Cell:
    """The cell, or the end of the command."""
    cell = find_cell(uuid, name)
    if cell is None:
        end(command, code, f"There is no cell {uuid or name or '(give --uuid)'}.")
    return cell


def chosen_cells(command: BaseCommand, uuid: str = "", name: str = "") -> list[Cell]:
    """One cell, or all of them when none is named."""
    return [cell_or_end(command, uuid, name)] if uuid or name else list(Cell.objects.order_by("name"))


def end(command: BaseCommand, code: int, sentence: str) -> NoReturn:
    """Say why in one sentence, and leave with the code scripts look at."""
    command.stderr.write(sentence)
    sys.exit(code)


def who() -> str:
    """Who asks, for the record: user@machine, the one behind a sudo."""
    try:
        user = env.invoking_user() or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def from_environment(given: str | None, variable: str) -> str:
    """A URL, or the variable's value for "-": an argument is seen by everybody on the machine."""
    return str(env.get(variable)) if given == "-" else (given or "")


def database_fault(url: str) -> str:
    """What is wrong with a cell's database URL; "" when nothing is."""
    if not url:
        return "No database URL is given."
    try:
        config(url)
    except BadDatabaseUrl as exc:
        return f"The database URL is not valid: {exc}."
    return ""


def broker_fault(url: str) -> str:
    """What is wrong with a cell's broker URL; "" when nothing is."""
    if not url:
        return "No broker URL is given."
    scheme = urlsplit(url).scheme
    if scheme and scheme in TRANSPORT_ALIASES:
        return ""
    return "The broker URL is not valid: use redis://… or amqp://…."


def same_database(url: str, *, but: str = "") -> str:
    """Whose database this is already: a cell's name, "the global database", or ""."""
    wanted = _place(config(url))
    if wanted == _place(connections.databases["default"]):
        return "the global database"
    for cell in Cell.objects.exclude(pk=but):
        if not database_fault(cell.database_url) and _place(config(cell.database_url)) == wanted:
            return f"cell {cell.name}"
    return ""


def _place(database: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(database.get(key) or "") for key in ("ENGINE", "NAME", "HOST", "PORT"))
