"""Write the systemd units of this installation, with stop timeouts that follow from its settings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tasks import stop_timeouts, systemd_units

DEFAULT = Path("/etc/systemd/system")


class Command(BaseCommand):
    """manage.py systemd_units"""

    help = (
        "Write the systemd units, with stop timeouts that follow from an env file. A file that is up to date is not "
        "touched. Exit codes: 0 done; 1 --check, and something is to be written."
    )
    requires_system_checks: list[str] = []  # a host's own machine has no global database

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of stop_timeouts. Units go to DEFAULT, and start programs beside this Python."""
        stop_timeouts.add_arguments(parser, systemd_units.FOLDER)
        parser.set_defaults(output=DEFAULT, prefix=str(Path(sys.prefix).parent))
        parser.epilog = f"Without --output they go to {DEFAULT}."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the units and print the paths of those that were written."""
        programs = Path(options["prefix"], ".venv/bin")
        if not programs.is_dir():
            raise CommandError(f"The units start programs in {programs}, which does not exist. Give the --prefix.")
        stale = stop_timeouts.write(
            systemd_units.FOLDER, systemd_units.PATTERN, systemd_units.fill, argparse.Namespace(**options)
        )
        for path in stale:
            self.stdout.write(f"{'not up to date' if options['check'] else 'written'}: {path}")
        if stale and options["check"]:
            sys.exit(1)
