"""How commands print: a table for people, or one JSON document for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


def add_json(parser: CommandParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="Print one JSON document instead of a table.")


def print_json(command: BaseCommand, document: Any) -> None:
    """One document, for scripts."""
    command.stdout.write(json.dumps(document, indent=2, default=str))


def print_table(command: BaseCommand, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Columns as wide as their widest word."""
    for line in table_lines(columns, rows):
        command.stdout.write(line)


def table_lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table, its heading first."""
    words = [[column.upper() for column in columns]]
    words += [[_word(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in words) for index in range(len(columns))]
    padded = [[word.ljust(width) for word, width in zip(line, widths, strict=True)] for line in words]
    return ["  ".join(line).rstrip() for line in padded]


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
