"""The processes of the APIs that serve now, so that an upgrade knows which are of an older version."""

from __future__ import annotations

from django.db import models

from cells.models import GlobalModel


class ApiProcess(GlobalModel):
    """One process of an API. It deletes its row when it drains; one that was killed is silent."""

    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    version = models.PositiveIntegerField()
    seen_at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("host", "pid"), name="one_row_per_api_process"),)

    def __str__(self) -> str:
        return f"{self.host} ({self.pid})"
