"""Admin page of images, read-only as all pages of records with a state."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from cloud.admin_page import ModelPage
from cloud.images.models import Image


@admin.register(Image)
class ImagePage(ModelPage):
    """The page of images."""

    list_display = ("name", "id", "status", "visibility", "owner", "disk_format", "size", "created_at")
    list_filter = ("status", "visibility", "disk_format", "protected", "os_hidden")
    search_fields = ("name", "id", "owner")
    ordering = ("-created_at", "-id")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: images are created by the API or `manage.py image_import`."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False
