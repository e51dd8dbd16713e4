"""Which command lines start without the pages of the admin."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from cloud import env, startup
from cloud.words import counted

OURS = [
    file.stem
    for app in env.ROOT.iterdir() if app.is_dir() and app.name not in ("tests", ".venv")
    for file in app.glob("**/management/commands/*.py") if file.stem != "__init__"
]  # fmt: skip


def test_every_command_of_ours_is_known_as_one():
    assert "host" in OURS
    assert [name for name in OURS if not startup.is_ours(["/somewhere/manage.py", name])] == []


@pytest.mark.parametrize("argv", [["manage.py"], ["manage.py", "check"], ["celery", "host"], ["manage.py", "../x"], []])
def test_everything_else_gets_its_pages(argv: list[str]):
    assert not startup.is_ours(argv)


@pytest.mark.parametrize(("command", "loads"), [("cell_list", "no"), ("collectstatic", "its")])
def test_a_command_loads_pages_only_if_it_has_to(command: str, loads: str):
    look = "import sys, django; django.setup(); print('its' if 'unfold' in sys.modules else 'no')"
    told = [sys.executable, "-c", f"import sys; sys.argv = ['manage.py', {command!r}]; {look}"]
    settings = {"DJANGO_SETTINGS_MODULE": "cloud.settings", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(told, cwd=env.ROOT, env=settings, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == (loads, 0), done.stderr


# -- its output is not read to its end, or is no terminal


@pytest.mark.parametrize("command", [["diffsettings", "--all"], ["token_key"]], ids=" ".join)
def test_a_command_whose_reader_has_gone_ends_without_a_word(command: list[str]):
    """`service_list | head` and `queue_depths | head` ended in a traceback, or a complaint of Python at its end."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, str(env.ROOT / "manage.py"), *command], stdout=writing, stderr=subprocess.PIPE, text=True,
            timeout=60, env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (ended.stderr, ended.returncode) == ("", startup.SIGPIPE)


def test_a_connection_that_broke_is_not_taken_for_the_reader():
    with pytest.raises(BrokenPipeError), startup.quiet_on_a_closed_pipe():
        raise BrokenPipeError


WARNS = "import django; django.setup(); from cloud import log; log.get('x').warning('something.happened', seconds=1)"


def test_lines_of_log_have_colours_on_a_terminal_only():
    """`queue_depths 2>&1 | less` was full of escape codes."""
    words = [sys.executable, "-c", WARNS]
    told = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "STILLWATER_LOG_FORMAT": "console"}
    piped = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, env=told, cwd=env.ROOT).stderr
    assert "something.happened" in piped
    assert "\x1b" not in piped

    ours, theirs = pty.openpty()
    subprocess.run(words, stderr=theirs, timeout=60, env=told, cwd=env.ROOT, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "\x1b[" in shown


def test_one_is_not_many():
    said = [counted(count, "server") for count in (0, 1, 2, 1200)]
    assert said == ["0 servers", "1 server", "2 servers", "1,200 servers"]
    assert counted(1, "operation needs it", "operations need it") == "1 operation needs it"
    assert counted(2, "operation needs it", "operations need it") == "2 operations need it"
