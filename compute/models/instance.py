"""Servers, each in its cell."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.db import models
from django.db.models import Q
from django.db.models.expressions import Combinable

from cells.models import CellModel
from compute.models import shutdown_preferences
from compute.state import TaskState, VmState
from compute.virt.base import Guest, Image


def new_uuid() -> str:
    """Return a new server id."""
    return str(uuid4())


class Instances(models.QuerySet["Instance"]):
    """Servers of a cell."""

    def living(self, *conditions: Q | Combinable, **columns: Any) -> Instances:
        """Return those that are not deleted, and meet the conditions; a soft-deleted server lives."""
        return self.filter(*conditions, deleted=False, **columns)


class Instance(CellModel):
    """One server: a virtual machine, or bare metal. State columns change only through `compute.state`.

    What the host needs from the global database (flavor, image facts, key) is a snapshot in this row, so that the host
    goes on working while that database is away.
    """

    id = models.BigAutoField(primary_key=True)
    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    display_name = models.CharField(max_length=255)
    description = models.CharField(max_length=255, null=True)  # noqa: DJ001  the API tells null from ""
    hostname = models.CharField(max_length=255, blank=True, default="")
    host = models.CharField(max_length=255, blank=True, default="", db_index=True)
    node = models.CharField(max_length=255, blank=True, default="")
    availability_zone = models.CharField(max_length=255, blank=True, default="")
    pinned_availability_zone = models.CharField(max_length=255, blank=True, default="")

    vm_state = models.CharField(max_length=24, choices=VmState.choices, default=VmState.BUILDING)
    task_state = models.CharField(max_length=32, choices=TaskState.choices, null=True)  # noqa: DJ001  null: idle
    power_state = models.PositiveSmallIntegerField(default=0)
    generation = models.PositiveIntegerField(default=0)  # +1 on every state change
    progress = models.PositiveSmallIntegerField(default=0)  # percent
    fault = models.JSONField(null=True)  # {code, message, details, created}

    locked_by = models.CharField(max_length=8, blank=True, default="")  # "", owner or admin
    locked_reason = models.CharField(max_length=255, null=True)  # noqa: DJ001  the API tells null from ""

    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()  # root disk; 0 = as large as the image
    flavor_id = models.CharField(max_length=255)
    flavor = models.JSONField()  # as the API shows it since 2.47, with extra_specs
    image_id = models.CharField(max_length=36, blank=True, default="")
    image = models.JSONField(default=dict)  # disk_format, size, virtual_size, checksum, properties
    key_name = models.CharField(max_length=255, null=True)  # noqa: DJ001  the API tells null from ""
    key_data = models.TextField(blank=True, default="")
    user_data = models.TextField(blank=True, default="")
    config_drive = models.BooleanField(default=False)
    metadata = models.JSONField(default=dict)
    tags = models.TextField(blank=True, default="")  # ",a,b,": filtered in SQL, shown without a query
    network = models.CharField(max_length=8, default="none")  # none | user
    addresses = models.JSONField(default=dict)
    access_ip_v4 = models.CharField(max_length=39, blank=True, default="")
    access_ip_v6 = models.CharField(max_length=39, blank=True, default="")
    disk_config = models.CharField(max_length=8, default="MANUAL")
    reservation_id = models.CharField(max_length=32, blank=True, default="")
    launch_index = models.PositiveIntegerField(default=0)
    root_device_name = models.CharField(max_length=32, blank=True, default="/dev/vda")

    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    launched_at = models.DateTimeField(null=True)
    terminated_at = models.DateTimeField(null=True)
    deleted = models.BooleanField(default=False)
    deleted_at = models.DateTimeField(null=True)
    soft_deleted_at = models.DateTimeField(null=True)  # reclaimed STILLWATER_RECLAIM_INSTANCE_INTERVAL s later
    resumes_with_host = models.BooleanField(default=False, db_default=False)  # its host took it down: start it again
    shelved_at = models.DateTimeField(null=True)
    shelved_image_id = models.CharField(max_length=36, blank=True, default="", db_default="")  # its disk while shelved

    objects = Instances.as_manager()

    class Meta:
        constraints = (
            models.CheckConstraint(
                name="running_server_has_a_host",
                condition=~Q(vm_state__in=[VmState.ACTIVE, VmState.PAUSED]) | ~Q(host=""),
            ),
        )
        indexes = (
            models.Index(fields=("project_id", "deleted", "-created_at", "uuid"), name="servers_of_project"),
            models.Index(fields=("deleted", "-created_at", "uuid"), name="servers_by_age"),
            models.Index(fields=("updated_at",), name="servers_by_change"),
        )

    def __str__(self) -> str:
        return self.uuid

    @property
    def instance_name(self) -> str:
        """The hypervisor's name for the server (Nova: default of instance_name_template)."""
        return f"instance-{self.id:08x}"

    @property
    def tag_list(self) -> list[str]:
        """The tags, in the order they were given."""
        return [tag for tag in self.tags.split(",") if tag]

    @staticmethod
    def join_tags(tags: list[str]) -> str:
        """Return the stored form of tags (a tag has no comma)."""
        return f",{','.join(tags)}," if tags else ""

    def as_guest(self) -> Guest:
        """Return what the virt driver needs to build or rebuild this server."""
        image: dict[str, Any] = self.image
        return Guest(
            uuid=self.uuid,
            name=self.instance_name,
            display_name=self.display_name,
            vcpus=self.vcpus,
            memory_mb=self.memory_mb,
            disk_gb=self.disk_gb,
            image=Image(
                id=self.image_id,
                disk_format=image.get("disk_format", "raw"),
                size=image.get("size") or 0,
                checksum=image.get("checksum") or "",
                virtual_size=image.get("virtual_size") or 0,
                properties=image.get("properties", {}),
            ),
            network=self.network,
            mac_address=_mac_of(self.addresses),
            project_id=self.project_id,
            shutdown_timeout=shutdown_preferences.said(self.metadata, image.get("properties", {})),
            shutdown_priority=shutdown_preferences.priority(self.metadata),
            node=self.node,
        )


def _mac_of(addresses: dict[str, list[dict[str, Any]]]) -> str:
    for listed in addresses.values():
        for address in listed:
            return str(address.get("OS-EXT-IPS-MAC:mac_addr", ""))
    return ""
