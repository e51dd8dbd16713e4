"""The global records: which cell holds which host and server, and what is known without asking a cell.

The base class of a model says in which database it lives. The router and a system check enforce it, so that no foreign
key, join or transaction crosses from one cell to another.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from django.db import models
from django.utils import timezone

from cells import database_clock

CELL0 = "00000000-0000-0000-0000-000000000000"


class GlobalModel(models.Model):
    """A model in the one global database."""

    home = "global"

    class Meta:
        abstract = True


class CellModel(models.Model):
    """A model in every cell's database; `target_cell()` decides which one."""

    home = "cell"

    class Meta:
        abstract = True


class Cell(GlobalModel):
    """A failure domain: one database, one broker, its hosts."""

    id = models.CharField(max_length=36, primary_key=True)
    name = models.CharField(max_length=255, unique=True)
    database_url = models.CharField(max_length=1024, unique=True)
    broker_url = models.CharField(max_length=1024, blank=True, default="")
    disabled = models.BooleanField(default=False)  # its hosts get no new servers
    swept_at = models.DateTimeField(null=True)  # the last known state of its servers is as of then
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_cell0(self) -> bool:
        """Whether this is cell0, which holds servers that never got a host and has no broker and no hosts."""
        return self.id == CELL0

    @property
    def alias(self) -> str:
        """The alias of its database in Django."""
        return f"cell:{self.id}"


class HostMapping(GlobalModel):
    """The cell of a host."""

    host = models.CharField(max_length=255, unique=True)
    cell = models.ForeignKey(Cell, on_delete=models.PROTECT, related_name="hosts")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.host


class InstanceMapping(GlobalModel):
    """The cell of a server. `cell` is null until the server is placed."""

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, null=True, on_delete=models.PROTECT, related_name="servers")
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    # True once a delete is accepted; null only in rows older than the column ("Handling a down cell").
    queued_for_delete = models.BooleanField(default=False, null=True)
    created_at = models.DateTimeField()
    # Its row is deleted, or missing: set some seconds later, so that lists need not ask the cell for it.
    is_deleted = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes = (
            models.Index(fields=("project_id", "queued_for_delete"), name="mapping_by_project"),
            models.Index(fields=("cell", "queued_for_delete"), name="mapping_by_cell"),
            models.Index(fields=("-created_at", "server_id"), name="mapping_by_age"),
            models.Index(fields=("cell", "project_id"), name="mapping_by_owner"),
            models.Index(
                fields=("project_id", "-created_at", "server_id", "cell"), name="living_of_project",
                condition=models.Q(is_deleted=False),
            ),
            models.Index(
                fields=("-created_at", "server_id", "cell"), name="living_by_age", condition=models.Q(is_deleted=False)
            ),
        )  # fmt: skip

    def __str__(self) -> str:
        return self.server_id


class DeferredDelete(GlobalModel):
    """A delete that was accepted while the server's cell was down. It is carried out when the cell is back."""

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="late_deletes")
    project_id = models.CharField(max_length=64)  # of the requester
    user_id = models.CharField(max_length=64)
    is_admin = models.BooleanField(default=False)  # an admin may delete a locked server
    request_id = models.CharField(max_length=64)
    words = models.JSONField(default=dict)  # the body of the request: how to shut the guest down
    asked_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.server_id


class DeferredEvent(GlobalModel):
    """An external event that was accepted while its server's cell was down. It is delivered when the cell is back."""

    server_id = models.CharField(max_length=36)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="deferred_events")
    name = models.CharField(max_length=64)
    tag = models.CharField(max_length=255, blank=True, default="")
    status = models.CharField(max_length=16)
    request_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)  # of the sender
    project_id = models.CharField(max_length=64)
    received_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("cell", "id"), name="deferred_events_of_cell"),)

    def __str__(self) -> str:
        return f"{self.name} of {self.server_id}"


class CellOutage(GlobalModel):
    """A period in which one process held a cell to be down. Open: `ended_at` is null and `confirmed_at` is recent."""

    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="outages")
    seen_by = models.CharField(max_length=255)  # role, machine and pid
    reason = models.CharField(max_length=255)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    confirmed_at = models.DateTimeField(default=timezone.now)  # a dead process confirms nothing

    class Meta:
        indexes = (models.Index(fields=("cell", "-began_at"), name="outages_of_cell"),)

    def __str__(self) -> str:
        return f"{self.cell_id} as seen by {self.seen_by}"


class ServerSnapshot(GlobalModel):
    """The last known state of a server. It is shown beside UNKNOWN, never as the current state.

    The server was in this state from `changed_at` until its cell's `swept_at`.
    """

    server_id = models.CharField(max_length=36, primary_key=True)
    cell = models.ForeignKey(Cell, on_delete=models.CASCADE, related_name="last_known")
    name = models.CharField(max_length=255)
    vm_state = models.CharField(max_length=24)
    task_state = models.CharField(max_length=32, blank=True, default="")
    power_state = models.PositiveSmallIntegerField(default=0)
    host = models.CharField(max_length=255, blank=True, default="")
    flavor = models.CharField(max_length=255, blank=True, default="")  # name
    addresses = models.JSONField(default=dict)
    changed_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("cell", "changed_at"), name="last_known_by_change"),)

    def __str__(self) -> str:
        return self.server_id


class RequestSpec(GlobalModel):
    """The parameters a server was created with, kept for its life: for quota, scheduling and down cells."""

    server_id = models.CharField(max_length=36, primary_key=True)
    project_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()
    flavor = models.JSONField()
    image_id = models.CharField(max_length=36, blank=True, default="")
    availability_zone = models.CharField(max_length=255, blank=True, default="")
    host = models.CharField(max_length=255, blank=True, default="")  # the requested one, not where it was placed
    hypervisor_hostname = models.CharField(max_length=255, blank=True, default="")
    scheduler_hints = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.server_id


class BuildRequest(GlobalModel):
    """A server that is accepted and has no cell yet. The row is the message to the scheduler.

    A scheduler holds it by a lease; any scheduler may take it when the lease has run out. `delete_requested` comes
    first: the scheduler that places the server then deletes it at once.
    """

    LEASE = 30.0  # seconds, by the clock of the global database

    server_id = models.CharField(max_length=36, primary_key=True)
    project_id = models.CharField(max_length=64, db_index=True)
    user_id = models.CharField(max_length=64)
    request_id = models.CharField(max_length=64)
    instance = models.JSONField()  # the columns of its future `Instance` row
    action = models.JSONField(default=dict)  # what the create step needs (image ticket, network)
    delete_requested = models.BooleanField(default=False)
    lease_holder = models.CharField(max_length=300, blank=True, default="")  # scheduler/attempt
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
        """Return the condition "no scheduler holds it": the lease has run out, or ends later than a lease can."""
        return database_clock.is_over("lease_until", cls.LEASE)


def masked(url: str) -> str:
    """Return a database or broker URL without its password, for pages, lists and logs."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:****@{parts.hostname}{port}"))
