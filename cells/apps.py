"""App config of the cells; registers the system checks."""

from django.apps import AppConfig


class CellsConfig(AppConfig):
    """The global mappings of hosts and servers to cells, and the access to cells."""

    name = "cells"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from cells import checks  # noqa: F401, PLC0415  the import registers them, and needs loaded models
