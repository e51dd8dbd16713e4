"""App config: registers the system checks."""

from django.apps import AppConfig


class CellsConfig(AppConfig):
    """Where things are."""

    name = "cells"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Load the checks."""
        from cells import checks  # noqa: F401, PLC0415  registering is the point, and models must be loaded
