"""Quota limits of projects, and the lock for counting."""

from __future__ import annotations

from django.db import models

from cells.models import GlobalModel


class Quota(GlobalModel):
    """A limit that differs from the default; -1 = unlimited."""

    project_id = models.CharField(max_length=64)
    resource = models.CharField(max_length=32)
    limit = models.IntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("project_id", "resource"), name="one_quota_per_resource"),)

    def __str__(self) -> str:
        return f"{self.resource} of {self.project_id}"


class ProjectLock(GlobalModel):
    """One row per project. Its UPDATE serializes counting, so that parallel boots cannot both take the last room."""

    project_id = models.CharField(max_length=64, primary_key=True)
    turns = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return self.project_id
