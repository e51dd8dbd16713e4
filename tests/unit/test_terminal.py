"""Tables, bars and the view that follows changes, on terminals of many widths and on a pipe."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from cloud.terminal import Bars, Fields, Rows, TerminalConsole, View

ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
ROWS = [{"server": "web-1", "state": "up", "why": "it is being rescued: unrescue it, or wait"}]
COLUMNS = ("server", "state", "why")


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch):
    """`shown(thing, columns)`: how a terminal of so many columns shows it; without colours."""

    def render(thing: Any, columns: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        out = terminal(monkeypatch)
        TerminalConsole(out).print(thing)
        return ESCAPES.sub("", out.getvalue())

    return render


def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def piped(thing: Any) -> str:
    out = io.StringIO()
    TerminalConsole(out).print(thing)
    return out.getvalue()


def test_a_table_on_a_pipe_has_a_line_for_each_row_however_long_and_no_escape_codes():
    text = piped(Rows(COLUMNS, [ROWS[0] | {"why": "no room: " * 4000}], indent=2))
    heading, row = text.splitlines()
    assert heading.split() == ["SERVER", "STATE", "WHY"]
    assert row.startswith("  web-1   up     no room: no room: ")
    assert (len(row) > 35_000, "\x1b" in text, row.endswith(" ")) == (True, False, False)


def test_a_terminal_has_colours_unless_no_color_is_set(monkeypatch):
    out = terminal(monkeypatch)
    TerminalConsole(out).print(Rows(COLUMNS, ROWS))
    assert "\x1b[32mup" in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    TerminalConsole(plain).print(Rows(COLUMNS, ROWS))
    assert "\x1b[32m" not in plain.getvalue()


@pytest.mark.parametrize("columns", [130, 60, 40, 30, 20])
def test_nothing_is_cut_off_and_no_line_is_wider_than_the_terminal(shown, columns):
    text = shown(Rows(COLUMNS, ROWS), columns)
    assert max(map(len, text.splitlines())) <= columns
    assert {"SERVER", "web-1", "STATE", "up", "rescued:", "wait"} <= set(text.split())


def test_where_the_columns_do_not_fit_each_value_has_a_line(shown):
    server = {"server": "5b4ad3ea-2f8e-4a02-b1f9-8d7f3e9c5a11", "state": "up", "why": "none"}
    assert [line.split() for line in shown(Rows(COLUMNS, [server]), 45).splitlines()] == [
        ["SERVER", server["server"]], ["STATE", "up"], ["WHY", "none"], [],
    ]  # fmt: skip


def test_a_name_moves_no_cursor_and_is_not_read_as_markup(shown):
    evil = "[red]x[/red]\x1b[2J\nup\r:smile:"
    for text in (shown(Rows(("name",), [{"name": evil}])), piped(Fields([("name", evil)])),
                 piped(Bars([(evil, None, evil)]))):  # fmt: skip
        assert "[red]x[/red]�[2J�up�:smile:" in text
        assert "\x1b" not in text


def test_values_are_one_line_of_text():
    text = piped(Fields([("a", None), ("b", True), ("c", {"x": ["1", 2]}), ("d", False)]))
    assert [line.split() for line in text.splitlines()] == [["a", "-"], ["b", "yes"], ["c", "x=1,", "2"], ["d", "no"]]


def test_a_bar_is_a_bar_on_a_terminal_and_its_text_elsewhere(shown):
    bars = Bars([("host1", 0.5, "1 of 2 off"), ("host2", None, "waits")])
    assert piped(bars) == "host1: 1 of 2 off\nhost2: waits\n"
    assert re.search(r"host1  ━+╺━+  1 of 2 off", shown(bars))


def test_sentences_are_wrapped_by_the_terminal_so_that_commands_in_them_can_be_copied(shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = terminal(monkeypatch)
    TerminalConsole(out).say("Then: manage.py host start host1, or not\n\x1b[2J")
    assert out.getvalue() == "Then: manage.py host start host1, or not\n�[2J\n"


def test_a_view_prints_each_change_once_on_a_pipe():
    out, now = io.StringIO(), [("a", 1, "a is 1"), ("b", 1, "")]
    view = View(TerminalConsole(out), lambda: "", lambda: now)
    for state in (now, now, [("a", 2, "a is 2"), ("b", 1, "b is 1")], [("a", 2, "a is 2"), ("b", 2, "b is 2")]):
        now = state
        view.refresh()
    view.close()
    assert out.getvalue() == "a is 1\na is 2\nb is 2\n"


def test_a_view_on_a_terminal_is_written_over_itself_and_left_whole(monkeypatch):
    monkeypatch.setenv("LINES", "5")
    out = terminal(monkeypatch)
    console, lines = TerminalConsole(out), ["1", "2"]
    view = View(console, lambda: "\n".join(lines), list)
    view.refresh()
    lines += [str(n) for n in range(3, 10)]
    view.refresh()
    console.say("between")
    while_shown = out.getvalue()
    view.close()
    assert "\x1b[1A\x1b[2K" in while_shown  # the cursor goes up, the line is cleared
    assert "9" not in while_shown
    assert ESCAPES.sub("", out.getvalue()).splitlines()[-1] == "9"
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")  # the cursor is hidden, then shown
