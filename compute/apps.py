"""App config of compute."""

from django.apps import AppConfig


class ComputeConfig(AppConfig):
    """What the cloud does."""

    name = "compute"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Says which tables a cell has to have."""
        from cells import scatter  # noqa: PLC0415  its models must be loaded

        scatter.ask_for("compute_instance", "compute_service")
