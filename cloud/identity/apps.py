"""App config of the embedded identity service."""

from django.apps import AppConfig


class IdentityConfig(AppConfig):
    """Keystone v3-shaped tokens, projects, users, roles, catalog."""

    name = "cloud.identity"
    label = "identity"
    default_auto_field = "django.db.models.BigAutoField"
