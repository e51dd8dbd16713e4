"""docs/upgrade.md: each command exists as the page writes it. `make upgrade-test` runs them."""

from __future__ import annotations

import re
import shlex
import signal

import pytest
from django.core.management import CommandError, get_commands, load_command_class

from compute.management.commands import upgrade_check
from tests.deployment import SYSTEMD, lines
from tests.upgrade import page
from tests.upgrade.page import Command

COMMANDS = [command for step in page.steps() for command in step.commands]
TEXT = page.PAGE.read_text()
INLINE = re.findall(r"`(manage\.py [^`]+)`", TEXT)


def parsed(command: Command) -> None:
    """Raises CommandError for an option or a verb, KeyError for a command, that there is not."""
    name, *words = (command.about("name") if command.placeholder else command.words)[1:]
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(words)


@pytest.mark.parametrize("line", [*{str(one): None for one in COMMANDS if one.words[0] == "manage.py"}, *INLINE])
def test_each_command_exists_with_these_options(line):
    parsed(Command(tuple(shlex.split(line))))


def test_a_command_that_was_renamed_is_found():
    for wrong in ("manage.py host rebegin HOST…", "manage.py upgrade_check --all"):
        with pytest.raises(CommandError):
            parsed(Command(tuple(wrong.split())))
    with pytest.raises(KeyError):
        parsed(Command(("manage.py", "migrate_cells")))


def test_the_api_starts_as_its_unit_starts_it():
    [gunicorn] = [command for command in COMMANDS if command.words[0] == "gunicorn"]
    [unit] = lines(SYSTEMD / "stillwater-api.service")["ExecStart"]
    assert shlex.split(unit)[1:] == [*gunicorn.words[1:]]
    [kill] = [command for command in COMMANDS if command.words[0] == "kill"]
    assert signal.Signals[f"SIG{kill.words[1].removeprefix('-')}"] is signal.SIGTERM
    assert COMMANDS.index(gunicorn) < COMMANDS.index(kill)


def test_the_units_that_it_restarts_exist():
    units = re.findall(r"systemctl restart ([\w.@-]+)", TEXT)
    assert units
    assert all((SYSTEMD / unit).is_file() for unit in units)


def test_the_check_asks_for_workers_in_the_order_of_the_page():
    workers = [one.placeholder for one in COMMANDS if list(one.words[:3]) == ["manage.py", "host", "restart"]]
    assert [f"{name.lower()}s" for name in workers] == [*upgrade_check.WORKERS.values()]


def test_it_begins_with_the_databases_and_ends_with_the_check():
    assert [*COMMANDS[0].words] == ["manage.py", "migrate"]
    assert [*COMMANDS[-1].words] == ["manage.py", "upgrade_check"]
    assert all(step.commands for step in page.steps())
