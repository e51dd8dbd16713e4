"""App config of the embedded image service."""

from django.apps import AppConfig


class ImagesConfig(AppConfig):
    """The embedded Glance v2: image records and a file store."""

    name = "cloud.images"
    label = "images"
    default_auto_field = "django.db.models.BigAutoField"
