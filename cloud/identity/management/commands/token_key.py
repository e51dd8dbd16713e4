"""manage.py token_key: print a new key for STILLWATER_TOKEN_KEYS."""

from typing import Any

from cryptography.fernet import Fernet
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Prints a new Fernet key."""

    help = "Print a new key for STILLWATER_TOKEN_KEYS. Put it first; keep the old one for one token lifetime."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a key and store nothing."""
        self.stdout.write(Fernet.generate_key().decode())
