"""The Django app configuration of compute."""

from django.apps import AppConfig


class ComputeConfig(AppConfig):
    """The compute app."""

    name = "compute"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the tables that the database of every cell must have."""
        from cells import scatter  # noqa: PLC0415  its models must be loaded

        scatter.require_tables("compute_instance", "compute_service")
