"""App config of compute."""

from django.apps import AppConfig


class ComputeConfig(AppConfig):
    """What the cloud does."""

    name = "compute"
    default_auto_field = "django.db.models.BigAutoField"
