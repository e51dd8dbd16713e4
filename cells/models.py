"""Where things are: the global records that say which cell holds what.

A model says which database it lives in by its base class. The router and a system check hold every
model to it, so no foreign key, join or transaction crosses from one cell to another.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from django.db import models
from django.utils import timezone

from cells import database_clock

CELL0 = "00000000-0000-0000-0000-000000000000"


class GlobalModel(models.Model):
    """Lives in the one global database."""

    home = "global"

    class Meta:
        abstract = True


class CellModel(models.Model):
    """Lives in every cell's database; which one is decided by `target_cell()`."""

    home = "cell"

    class Meta:
        abstract = True


class Cell(GlobalModel):
    """A failure domain: one database, one broker, its hosts."""

    id = models.CharField(max_length=36, primary_key=True)
    name = models.CharField(max_length=255, unique=True)
    database_url = models.CharField(max_length=1024, unique=True)
    broker_url = models.CharField(max_length=1024, blank=True, default="")
    disabled = models.BooleanField(default=False)  # hosts get no new servers
    swept_at = models.DateTimeField(null=True)  # until then `ServerSnapshot` says what its servers were
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_cell0(self) -> bool:
        """cell0 holds servers that never got a host; it has no broker and no hosts."""
        return self.id == CELL0

    @property
    def alias(self) -> str:
        """Its name among Django's databases."""
        return f"cell:{self.id}"


class HostMapping(GlobalModel):
    """Which cell a host is in."""

    host = models.CharField(max_length=255, unique=True)
    cell = models.ForeignKey(Cell, on_delete=models.PROTECT, related_name="hosts")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.host


class InstanceMapping(GlobalModel):
    """Which cell a server is in. `cell` is null until it is placed."""

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, null=True, on_delete=models.PROTECT, related_name="servers")
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    # True once a delete was asked for; null only in rows from before the column (spec 3).
    queued_for_delete = models.BooleanField(default=False, null=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = (
            models.Index(fields=("project_id", "queued_for_delete"), name="mapping_by_project"),
            models.Index(fields=("cell", "queued_for_delete"), name="mapping_by_cell"),
            models.Index(fields=("-created_at", "server_id"), name="mapping_by_age"),
        )

    def __str__(self) -> str:
        return self.server_id


class DeferredDelete(GlobalModel):
    """A delete that was accepted while the server's cell was down. It is carried out when the cell is back."""

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="late_deletes")
    project_id = models.CharField(max_length=64)  # of who asked
    user_id = models.CharField(max_length=64)
    is_admin = models.BooleanField(default=False)  # whom no lock holds
    request_id = models.CharField(max_length=64)
    words = models.JSONField(default=dict)  # how the guest is to be shut down
    asked_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.server_id


class DeferredEvent(GlobalModel):
    """An external event that was accepted while its server's cell was down. It is delivered when the cell is back."""

    server_id = models.CharField(max_length=36)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="late_events")
    name = models.CharField(max_length=64)
    tag = models.CharField(max_length=255, blank=True, default="")
    status = models.CharField(max_length=16)
    request_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)  # of who sent it
    project_id = models.CharField(max_length=64)
    received_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("cell", "id"), name="late_events_of_cell"),)

    def __str__(self) -> str:
        return f"{self.name} of {self.server_id}"


class CellOutage(GlobalModel):
    """A time in which one process held a cell to be down: open while `ended_at` is null, if it was confirmed lately."""

    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="outages")
    seen_by = models.CharField(max_length=255)  # role, machine and pid
    reason = models.CharField(max_length=255)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    confirmed_at = models.DateTimeField(default=timezone.now)  # a process that died confirms nothing any more

    class Meta:
        indexes = (models.Index(fields=("cell", "-began_at"), name="outages_of_cell"),)

    def __str__(self) -> str:
        return f"{self.cell_id} as seen by {self.seen_by}"


class ServerSnapshot(GlobalModel):
    """What a server was when its cell was last heard of. Shown beside UNKNOWN, never as what it is.

    It was so until its cell's `swept_at`; `changed_at` is when it became so.
    """

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="last_known")
    name = models.CharField(max_length=255)
    vm_state = models.CharField(max_length=24)
    task_state = models.CharField(max_length=32, blank=True, default="")
    power_state = models.PositiveSmallIntegerField(default=0)
    host = models.CharField(max_length=255, blank=True, default="")
    flavor = models.CharField(max_length=255, blank=True, default="")  # its name
    addresses = models.JSONField(default=dict)
    changed_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("cell", "changed_at"), name="last_known_by_change"),)

    def __str__(self) -> str:
        return self.server_id


class RequestSpec(GlobalModel):
    """What was asked for when a server was created, kept for its life: quota, scheduling, down cells."""

    server_id = models.CharField(max_length=36, primary_key=True)
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()
    flavor = models.JSONField()
    image_id = models.CharField(max_length=36, blank=True, default="")
    availability_zone = models.CharField(max_length=255, blank=True, default="")
    host = models.CharField(max_length=255, blank=True, default="")  # asked for, not placed on
    hypervisor_hostname = models.CharField(max_length=255, blank=True, default="")
    scheduler_hints = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.server_id


class BuildRequest(GlobalModel):
    """A server that is asked for and not yet in a cell. The row is the message to the scheduler.

    A scheduler holds it by a lease; a lease that ran out is anybody's. `delete_requested` wins over
    everything: whoever places the server then deletes it at once.
    """

    LEASE = 30.0  # seconds, by the clock of the global database

    server_id = models.CharField(max_length=36, primary_key=True)
    project_id = models.CharField(max_length=64, db_index=True)
    user_id = models.CharField(max_length=64)
    request_id = models.CharField(max_length=64)
    instance = models.JSONField()  # the columns of the server's future row
    action = models.JSONField(default=dict)  # what the create step needs (image ticket, network)
    delete_requested = models.BooleanField(default=False)
    lease_holder = models.CharField(max_length=300, blank=True, default="")  # scheduler/one try
    lease_until = models.DateTimeField(null=True)
    sends = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("lease_until",), name="build_request_by_lease"),)

    def __str__(self) -> str:
        return self.server_id

    @classmethod
    def is_free(cls) -> models.Q:
        """Whether nobody holds it: its lease has run out, or ends later than a lease can."""
        return database_clock.is_over("lease_until", cls.LEASE)


def masked(url: str) -> str:
    """A database or broker URL without its password, for pages, lists and logs."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:****@{parts.hostname}{port}"))
