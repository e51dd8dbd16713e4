"""Calls to a host that an API request waits for (ADR 0012)."""

from __future__ import annotations

from django.db import models

from cells.models import CellModel
from compute.models.instance import new_uuid


class HostCall(CellModel):
    """A call and, soon, its answer (e.g. console output). Expired rows are swept."""

    id = models.CharField(max_length=36, primary_key=True, default=new_uuid)
    host = models.CharField(max_length=255)
    server_id = models.CharField(max_length=36)
    method = models.CharField(max_length=64)
    params = models.JSONField(default=dict)
    expires_at = models.DateTimeField(db_index=True)
    claimed_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)
    answer = models.JSONField(null=True)
    error = models.CharField(max_length=255, blank=True, default="")

    def __str__(self) -> str:
        return f"{self.method} of {self.server_id}"
