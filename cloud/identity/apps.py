"""App config of the embedded identity service."""

from django.apps import AppConfig


class IdentityConfig(AppConfig):
    """The embedded Keystone v3: tokens, projects, users, roles, catalog."""

    name = "cloud.identity"
    label = "identity"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from cloud.identity import checks  # noqa: F401, PLC0415  needs loaded settings
