"""Admin page of images: looking only, as everywhere where states are shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from cloud.admin_page import ModelPage
from cloud.images.models import Image


@admin.register(Image)
class ImagePage(ModelPage):
    """Images, read-only."""

    list_display = ("name", "id", "status", "visibility", "owner", "disk_format", "size", "created_at")
    list_filter = ("status", "visibility", "disk_format", "protected", "os_hidden")
    search_fields = ("name", "id", "owner")
    ordering = ("-created_at", "-id")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: images are made through the API or `manage.py image_import`."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False
