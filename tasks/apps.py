"""App config of the worker processes."""

from django.apps import AppConfig


class TasksConfig(AppConfig):
    """Where work runs."""

    name = "tasks"
    default_auto_field = "django.db.models.BigAutoField"
