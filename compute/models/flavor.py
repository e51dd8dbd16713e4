"""Flavors: the sizes of servers."""

from __future__ import annotations

from typing import Any

from django.db import models

from cells.models import GlobalModel


class Flavor(GlobalModel):
    """A size on offer. Servers keep a snapshot of it, so deleting a flavor does not affect them."""

    flavor_id = models.CharField(max_length=255, unique=True)
    name = models.CharField(max_length=255, unique=True)
    description = models.CharField(max_length=65535, null=True)  # noqa: DJ001  the API tells null from ""
    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()
    ephemeral_gb = models.PositiveIntegerField(default=0)
    swap_mb = models.PositiveIntegerField(default=0)
    rxtx_factor = models.FloatField(default=1.0)
    is_public = models.BooleanField(default=True)
    disabled = models.BooleanField(default=False)
    extra_specs = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("flavor_id",)

    def __str__(self) -> str:
        return self.name

    def snapshot(self) -> dict[str, Any]:
        """Return what a server keeps of the flavor: the form that the API shows since microversion 2.47."""
        return {
            "vcpus": self.vcpus,
            "ram": self.memory_mb,
            "disk": self.disk_gb,
            "ephemeral": self.ephemeral_gb,
            "swap": self.swap_mb,
            "original_name": self.name,
            "extra_specs": self.extra_specs,
        }


class FlavorAccess(GlobalModel):
    """A project that may use a flavor that is not public."""

    flavor = models.ForeignKey(Flavor, on_delete=models.CASCADE, related_name="access")
    project_id = models.CharField(max_length=64)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("flavor", "project_id"), name="one_access_per_project"),)

    def __str__(self) -> str:
        return f"{self.flavor_id} for {self.project_id}"
