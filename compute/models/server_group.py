"""Server groups: servers that are to be together, or apart."""

from __future__ import annotations

from django.db import models

from cells.models import GlobalModel
from compute.models.instance import new_uuid


class ServerGroup(GlobalModel):
    """A placement policy for its members: affinity, anti-affinity, and the soft form of both."""

    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    name = models.CharField(max_length=255)
    policy = models.CharField(max_length=32)
    rules = models.JSONField(default=dict, blank=True)  # max_server_per_host
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    host = models.CharField(max_length=255, blank=True, default="")  # of affinity: the host of its members
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = (models.Index(fields=("project_id", "id"), name="groups_of_project"),)

    def __str__(self) -> str:
        return self.name


class ServerGroupMember(GlobalModel):
    """A server of a group; a server is in at most one group."""

    group = models.ForeignKey(ServerGroup, on_delete=models.CASCADE, related_name="members")
    server_id = models.CharField(max_length=36, unique=True)

    def __str__(self) -> str:
        return f"{self.server_id} in {self.group_id}"
