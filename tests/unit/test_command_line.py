"""Which command lines start without the pages of the admin."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cloud import command_line, env

OURS = [
    file.stem
    for app in env.ROOT.iterdir() if app.is_dir() and app.name not in ("tests", ".venv")
    for file in app.glob("**/management/commands/*.py") if file.stem != "__init__"
]  # fmt: skip


def test_every_command_of_ours_is_known_as_one():
    assert "host" in OURS
    assert [name for name in OURS if not command_line.is_ours(["/somewhere/manage.py", name])] == []


@pytest.mark.parametrize("argv", [["manage.py"], ["manage.py", "check"], ["celery", "host"], ["manage.py", "../x"], []])
def test_everything_else_gets_its_pages(argv: list[str]):
    assert not command_line.is_ours(argv)


@pytest.mark.parametrize(("command", "loads"), [("cell_list", "no"), ("collectstatic", "its")])
def test_a_command_loads_pages_only_if_it_has_to(command: str, loads: str):
    look = "import sys, django; django.setup(); print('its' if 'unfold' in sys.modules else 'no')"
    told = [sys.executable, "-c", f"import sys; sys.argv = ['manage.py', {command!r}]; {look}"]
    settings = {"DJANGO_SETTINGS_MODULE": "cloud.settings", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(told, cwd=env.ROOT, env=settings, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == (loads, 0), done.stderr
