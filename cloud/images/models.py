"""Image records. Their content is in the folder of `file_store`."""

from __future__ import annotations

from uuid import uuid4

from django.db import models

from cells.models import GlobalModel


class Status(models.TextChoices):
    """The state of an image. `queued`: it has no content yet."""

    QUEUED = "queued"
    SAVING = "saving"
    ACTIVE = "active"
    KILLED = "killed"
    DELETED = "deleted"


class Visibility(models.TextChoices):
    """The projects that may use an image besides its owner. `shared` has no members yet: it acts as private."""

    PUBLIC = "public"
    PRIVATE = "private"
    SHARED = "shared"
    COMMUNITY = "community"


def new_id() -> str:
    """Return a random UUID."""
    return str(uuid4())


class Image(GlobalModel):
    """One image. Only `cloud.images.upload` makes it active, by one conditional UPDATE."""

    id = models.CharField(max_length=36, primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=255, blank=True, default="", db_index=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    visibility = models.CharField(max_length=16, choices=Visibility.choices, default=Visibility.SHARED)
    owner = models.CharField(max_length=64, blank=True, default="")  # project id
    disk_format = models.CharField(max_length=16, blank=True, default="")
    container_format = models.CharField(max_length=16, blank=True, default="")
    min_disk = models.PositiveIntegerField(default=0)  # GiB
    min_ram = models.PositiveIntegerField(default=0)  # MiB
    size = models.BigIntegerField(null=True)
    virtual_size = models.BigIntegerField(null=True)
    checksum = models.CharField(max_length=32, blank=True, default="")  # MD5, because clients compare it
    os_hash_algo = models.CharField(max_length=16, blank=True, default="")
    os_hash_value = models.CharField(max_length=128, blank=True, default="")
    protected = models.BooleanField(default=False)
    os_hidden = models.BooleanField(default=False)
    properties = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        indexes = (
            models.Index(fields=("-created_at", "-id"), name="image_newest_first"),
            models.Index(fields=("owner", "status"), name="image_by_owner"),
            models.Index(fields=("visibility", "status"), name="image_by_visibility"),
        )

    def __str__(self) -> str:
        return self.name or self.id
