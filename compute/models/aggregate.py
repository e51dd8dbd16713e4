"""Host aggregates."""

from __future__ import annotations

from django.db import models

from cells.models import GlobalModel
from compute.models.instance import new_uuid


class Aggregate(GlobalModel):
    """A named set of hosts. With `availability_zone` in its metadata it is that availability zone."""

    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    name = models.CharField(max_length=255, unique=True)
    metadata = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name


class AggregateHost(GlobalModel):
    """A host in an aggregate."""

    aggregate = models.ForeignKey(Aggregate, on_delete=models.CASCADE, related_name="hosts")
    host = models.CharField(max_length=255, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("aggregate", "host"), name="once_in_an_aggregate"),)

    def __str__(self) -> str:
        return f"{self.host} in {self.aggregate_id}"
