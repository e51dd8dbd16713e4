"""manage.py tls_certificates: make and renew the certificates of all machines. Needs no database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from cells.management import options as shared
from cloud.tls import store


class Command(BaseCommand):
    """Keeps a folder with a certificate authority, and with the files of each machine."""

    help = (
        "Make a certificate authority once, and a certificate for each machine; renew those that end soon. Without "
        "names: all machines of the folder. docs/tls.md says which file goes where."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder, the machines, and how long certificates are valid."""
        parser.add_argument("machines", nargs="*", metavar="NAME[=ADDRESS,...]",
                            help="A machine, with the other names and IP addresses at which others reach it. Without "
                                 "addresses it keeps those of its certificate.")  # fmt: skip
        parser.add_argument("--output", required=True, metavar="DIR", help="The folder; it is made if it is missing.")
        parser.add_argument("--days", type=int, default=365, help="Days a machine's certificate is valid (365).")
        parser.add_argument("--ca-days", type=int, default=3650, help="Days the authority is valid (3650).")
        parser.add_argument("--renew-within", type=int, default=60, metavar="DAYS",
                            help="Renew what ends within so many days (60).")  # fmt: skip
        shared.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one row per certificate; never a key."""
        days, ca_days, renew = options["days"], options["ca_days"], options["renew_within"]
        if not 0 <= renew < min(days, ca_days):
            raise CommandError("--renew-within must be less than --days and --ca-days: each run would renew all.")
        try:
            machines = dict(store.parse_machine(text) for text in options["machines"])
            kept = store.update(Path(options["output"]), machines, store.Validity(days, ca_days, renew))
        except (store.BadStore, OSError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            shared.print_json(self, [asdict(one) for one in kept])
            return
        rows = [{"name": one.name, "valid until": f"{one.until:%Y-%m-%d %H:%M} UTC", "done": one.done,
                 "why": one.why or None, "addresses": one.addresses or None} for one in kept]  # fmt: skip
        shared.print_table(self, ("name", "valid until", "done", "why", "addresses"), rows)
