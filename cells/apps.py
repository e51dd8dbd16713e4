"""App config of the cells; registers the system checks."""

from django.apps import AppConfig


class CellsConfig(AppConfig):
    """The global mappings of hosts and servers to cells, and the access to cells."""

    name = "cells"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and log what is wrong with the TLS of a process that stays."""
        from cells import checks, tls_warnings  # noqa: F401, PLC0415  registers them, and needs loaded models

        tls_warnings.log_found()
