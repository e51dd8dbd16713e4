"""Progress of a wait: on a terminal a line per server that counts down, elsewhere a line per change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from cloud.cli.requests import ServerRequest
from cloud.cli.sanitize import plain


class ProgressOutput(Protocol):
    """The display of a wait."""

    def show(self, order: ServerRequest) -> None:
        """Show the new state of a request."""


@contextmanager
def opened(orders: list[ServerRequest]) -> Iterator[ProgressOutput]:
    """Yield the display, on standard error: standard output has only the result."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), _Words())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(progress, orders)


class _Bars:
    """Lines on a terminal. They vanish when the wait is over: the result goes to standard output."""

    def __init__(self, progress: Progress, orders: list[ServerRequest]) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {
            order.server.id: progress.add_task(plain(order.title), total=None, order=order)
            for order in orders if order.is_open
        }  # fmt: skip

    def show(self, order: ServerRequest) -> None:
        share = order.look.share if order.is_open else 1.0
        self._progress.update(
            self._tasks[order.server.id], total=None if share is None else 1.0, completed=share or 0.0
        )


class _Words(ProgressColumn):
    """The text of a line. Rendered ten times a second, so that the seconds count down between two polls."""

    max_refresh = 0.1

    def render(self, task: Task) -> Text:
        order: ServerRequest = task.fields["order"]
        return Text(plain(order.look.words if order.is_open else order.sentence()), no_wrap=True, overflow="ellipsis")


class _Lines:
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[object, ...]] = {}

    def show(self, order: ServerRequest) -> None:
        change = order.look.change
        if order.is_open and self._seen.get(order.server.id) != change:
            self._seen[order.server.id] = change
            print(f"{plain(order.title)}: {plain(order.look.words)}", file=sys.stderr, flush=True)
