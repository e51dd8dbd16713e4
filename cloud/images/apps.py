"""App config of the embedded image service."""

from django.apps import AppConfig


class ImagesConfig(AppConfig):
    """Glance v2-shaped image registry with a file store."""

    name = "cloud.images"
    label = "images"
    default_auto_field = "django.db.models.BigAutoField"
