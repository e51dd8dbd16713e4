"""App config of the worker processes."""

from django.apps import AppConfig


class TasksConfig(AppConfig):
    """The worker processes, and `manage.py host`."""

    name = "tasks"
    default_auto_field = "django.db.models.BigAutoField"
