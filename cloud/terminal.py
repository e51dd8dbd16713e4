"""Terminal output of all commands, with rich: sentences, tables, progress bars, and a view that follows changes.

On a terminal everything fits its width. Elsewhere (a pipe, a file) no line is wrapped or cut and there are no escape
codes. rich respects NO_COLOR. Text is never read as markup, and control characters are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOBase
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

WIDE = 100_000  # characters on a line where the output is not a terminal
LEAST_TEXT = 30  # least width of a column that wraps
_GOOD, _BAD, _WARN, _GREY = "green", "bold red", "yellow", "dim"
_STYLES = {
    "ACTIVE": _GOOD, "up": _GOOD, "done": _GOOD,
    "ERROR": _BAD, "down": _BAD, "failed": _BAD, "refused": _BAD, "blocked": _BAD,
    "UNKNOWN": _WARN, "unknown": _WARN, "never seen": _WARN, "draining": _WARN, "emptying": _WARN, "timed out": _WARN,
    "SHUTOFF": _GREY, "DELETED": _GREY, "drained": _GREY, "stopped": _GREY, "off": _GREY,
}  # fmt: skip

Change = tuple[Hashable, Hashable, str]  # what it is about; what differs when a new line is due; the line


def sanitize(text: str, keep: str = "") -> str:
    """Replace what is not printable, such as cursor movements and newlines: users choose the names of servers."""
    return "".join(char if char.isprintable() or char in keep else "\N{REPLACEMENT CHARACTER}" for char in text)


def format_value(value: Any, none: str = "-") -> str:
    """Return a value as one line of text."""
    if value is None:
        return none
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{sanitize(str(key))}={format_value(inner, none)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(format_value(inner, none) for inner in value)
    return sanitize(str(value))


class TerminalConsole(Console):
    """The console of one stream, which may be Django's OutputWrapper."""

    def __init__(self, stream: TextIO | TextIOBase) -> None:
        # `_out`: OutputWrapper adds a newline to every write, also to one that only moves the cursor
        options: dict[str, Any] = {"file": getattr(stream, "_out", stream)}
        if not stream.isatty():
            options |= {"width": WIDE, "force_terminal": False}
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def say(self, text: str) -> None:
        """Print sentences. The terminal wraps them, so that a command in them can be copied."""
        self.print(Text(sanitize(text, keep="\n")), soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError that rich caught: the commands have their own exit codes for it."""
        self.quiet = True
        raise


@dataclass(frozen=True, slots=True)
class Fields:
    """Names and values, a line for each."""

    pairs: Sequence[tuple[str, Any]]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in self.pairs:
            grid.add_row(name, _styled(value))
        yield from _lines(grid, self.indent, console, options)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, whose last column may wrap. On a terminal that is too narrow each row is a block of `Fields`."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich."""
        titles = [column.upper() for column in self.columns]
        cells = [[_styled(row.get(column)) for column in self.columns] for row in self.rows]
        *widths, last = (max(map(cell_len, (title, *(text.plain for text in column))))
                         for title, *column in zip(titles, *cells, strict=True))  # fmt: skip
        if self.indent + sum(widths) + 2 * len(widths) + min(last, LEAST_TEXT) > options.max_width:
            for row in cells:
                yield Fields(list(zip(titles, row, strict=True)))
                yield ""
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in titles:
            table.add_column(title, no_wrap=title is not titles[-1])
        for row in cells:
            table.add_row(*row)
        yield from _lines(table, self.indent, console, options)


@dataclass(frozen=True, slots=True)
class Bars:
    """Progress bars: title, share that is done (0..1; None: not known), text. Not on a terminal: the texts alone."""

    rows: Sequence[tuple[str, float | None, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render for rich."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for title, share, text in self.rows:
            if console.is_terminal:
                bar = ProgressBar(total=1.0, completed=share or 0.0, width=24, pulse=share is None)
                grid.add_row(sanitize(title), bar, Text(sanitize(text), no_wrap=True, overflow="ellipsis"))
            else:
                yield Text(sanitize(f"{title}: {text}"))
        if grid.rows:
            yield grid


class View:
    """What a command shows while it waits: on a terminal a page that is written over itself, else a line per change.

    `render` returns the page; `changes` returns what there is to report, where an empty line is not printed.
    `animated`: the page is also rendered between two calls of `refresh`, in a thread of rich, and vanishes at the end.
    """

    def __init__(
        self, console: TerminalConsole, render: Callable[[], RenderableType], changes: Callable[[], Iterable[Change]],
        *, animated: bool = False,
    ) -> None:  # fmt: skip
        self._console, self._changes = console, changes
        self._seen: dict[Hashable, Hashable] = {}
        is_live = console.is_terminal and not console.is_dumb_terminal
        options: dict[str, Any] = {"get_renderable": render, "auto_refresh": animated, "transient": animated}
        self._live = Live(console=console, **options) if is_live else None

    def refresh(self) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.start()
            self._live.refresh()
            return
        for about, change, line in self._changes():
            if line and self._seen.get(about) != change:
                self._console.say(line)
            self._seen[about] = change

    def close(self) -> None:
        """Leave the last page on the terminal, whole; what is printed now comes below it."""
        if self._live is not None:
            self._live.stop()


def _styled(value: Any) -> Text:
    if isinstance(value, Text):
        return value
    text = format_value(value)
    return Text(text, style=_STYLES.get(text, ""), overflow="fold")


def _lines(table: Table, indent: int, console: Console, options: ConsoleOptions) -> RenderResult:
    """Render a table; for a pipe without the spaces that rich puts at the end of lines."""
    margin = " " * indent
    for line in console.render_lines(table, options.update(max_width=options.max_width - indent), pad=False):
        if console.is_terminal:
            yield from (Segment(margin), *line, Segment.line())
        else:
            yield Text(f"{margin}{''.join(segment.text for segment in line)}".rstrip())
