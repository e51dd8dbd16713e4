"""Output of commands: a table for people, or one JSON document for scripts."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, OutputWrapper

GAP, INDENT = "  ", "    "  # between two columns; before a line that continues a row
TEXT = 30  # least width of the last column; with less room it goes below


def add_json(parser: CommandParser) -> None:
    """Add the option `--json`."""
    parser.add_argument("--json", action="store_true", help="Print one JSON document instead of a table.")


def print_json(command: BaseCommand, document: Any) -> None:
    """Print one JSON document."""
    command.stdout.write(json.dumps(document, indent=2, default=str))


def print_table(command: BaseCommand, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table: on a terminal no wider than the terminal, elsewhere as wide as its content."""
    for line in table_lines(columns, rows, width_of(command.stdout)):
        command.stdout.write(line)


def width_of(out: OutputWrapper) -> int | None:
    """Return the width of the terminal; None when the output is none and lines may have any length."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def table_lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], width: int | None = None) -> list[str]:
    """Return the lines of a table, its heading first. Nothing is cut: what exceeds `width` continues below.

    The last column is text and is wrapped. Columns that do not fit beside the others begin another line of the row.
    """
    words = [[column.upper() for column in columns]]
    words += [[_word(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in words) for index in range(len(columns))]
    groups = [list(range(len(columns)))] if width is None else _groups(widths, width)
    return [line for cells in words for group in groups for line in _lines(cells, group, widths, width)]


def inner_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], width: int | None, by: int = 2) -> list[str]:
    """Return the lines of a table inside a page: as `table_lines`, indented by `by` characters."""
    return [f"{' ' * by}{line}" for line in table_lines(columns, rows, width and width - by)]


def _groups(widths: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns that share a line of their row: as many as fit."""
    groups: list[list[int]] = [[]]
    for index, wanted in enumerate(widths):
        least = min(wanted, TEXT) if index == len(widths) - 1 else wanted
        taken = len(INDENT) * (len(groups) > 1) + sum(widths[other] + len(GAP) for other in groups[-1])
        if groups[-1] and taken + least > width:
            groups.append([])
        groups[-1].append(index)
    return groups


def _lines(cells: Sequence[str], group: Sequence[int], widths: Sequence[int], width: int | None) -> list[str]:
    """Return one line of a row, and the lines on which its text continues."""
    before = INDENT * (group[0] > 0) + "".join(cells[index].ljust(widths[index]) + GAP for index in group[:-1])
    text = cells[group[-1]]
    if width is None or group[-1] < len(widths) - 1:
        return [(before + text).rstrip()]
    first, *more = textwrap.wrap(text, max(width - len(before), 1), break_on_hyphens=False) or [""]
    return [(before + first).rstrip(), *(" " * len(before) + piece for piece in more)]


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
