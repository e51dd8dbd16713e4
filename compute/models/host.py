"""The services of a cell, the nodes with their inventory and allocations, and the drain migrations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from cells import database_clock
from cells.compiled_query import CompiledRecords
from cells.models import CellModel
from compute.models.instance import new_uuid

COMPUTE, CONDUCTOR, SCHEDULER = "nova-compute", "nova-conductor", "nova-scheduler"


class Services(models.QuerySet["Service"]):
    """Services by their heartbeats, which are times of the database's clock."""

    def alive(self) -> Services:
        """Return those with a heartbeat within SERVICE_DOWN_TIME that have not deregistered since."""
        beats = database_clock.is_recent("last_seen_up", settings.SERVICE_DOWN_TIME)
        return self.filter(beats, ended_at__isnull=True)

    def computes(self, **columns: Any) -> Services:
        """Return the compute services with these columns."""
        return self.filter(binary=COMPUTE, **columns)

    def of_host(self, host: str) -> Service | None:
        """Return the compute service of a host."""
        return self.computes(host=host).first()

    def set_right(self) -> int:
        """Set heartbeats in the future, which a wrong clock wrote, to now; return how many there were.

        A living process soon overwrites it; a dead one is down after SERVICE_DOWN_TIME.
        """
        ahead = self.filter(last_seen_up__gt=database_clock.now(settings.SERVICE_DOWN_TIME))
        return ahead.update(last_seen_up=database_clock.now())


class _WithTheTime(models.Manager.from_queryset(Services)):  # type: ignore[misc]
    """Each row comes with the time of its database when it was read."""

    def get_queryset(self) -> Services:
        return super().get_queryset().annotate(read_at=database_clock.now())


class Service(CellModel):
    """One service process: its heartbeat, what the operator requested of it, and its present incarnation.

    Operators write `drain_*`; the process itself writes `draining_since`, `drained_at`, `in_progress` and `ended_at`.
    """

    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    binary = models.CharField(max_length=64)
    host = models.CharField(max_length=255)
    availability_zone = models.CharField(max_length=255, default="internal")
    disabled = models.BooleanField(default=False)
    disabled_reason = models.CharField(max_length=255, null=True)  # noqa: DJ001  the API tells null from ""
    forced_down = models.BooleanField(default=False)
    last_seen_up = models.DateTimeField(null=True)
    seen_when_forced = models.DateTimeField(null=True)  # its last heartbeat when an operator forced it down
    version = models.PositiveIntegerField(default=1)
    incarnation = models.CharField(max_length=36, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(null=True)
    # db_default: during an upgrade workers of the previous version write rows, too
    drain_wanted = models.BooleanField(default=False, db_default=False)
    drain_then_exit = models.BooleanField(default=False, db_default=False)  # False: it stays until it is undrained
    drain_by = models.CharField(max_length=255, blank=True, default="", db_default="")
    drain_reason = models.CharField(max_length=255, blank=True, default="", db_default="")
    drain_asked_at = models.DateTimeField(null=True)
    drain_deadline = models.DateTimeField(null=True)  # null: no limit
    draining_since = models.DateTimeField(null=True)  # null: it takes new work
    drained_at = models.DateTimeField(null=True)  # since then no operation needs it
    in_progress = models.PositiveIntegerField(default=0, db_default=0)  # operations that need it, at its last heartbeat
    ended_at = models.DateTimeField(null=True)  # it deregistered; its next incarnation clears this
    drain_moves = models.PositiveIntegerField(default=0, db_default=0)  # servers moved at the same time; 0: none

    objects = _WithTheTime()
    read_at: datetime  # the database's time; rows that were not read have none

    class Meta:
        constraints = (models.UniqueConstraint(fields=("binary", "host"), name="one_service_per_host"),)

    def __str__(self) -> str:
        return f"{self.binary}@{self.host}"

    @property
    def is_up(self) -> bool:
        """Whether it can work, as far as is known: it beats, and no operator has forced it down."""
        return self.beats and not self.forced_down

    @property
    def beats(self) -> bool:
        """Whether it has not deregistered, and its heartbeat is within SERVICE_DOWN_TIME of the database's time."""
        if self.ended_at is not None:
            return False
        return abs(self.silent_for) <= timedelta(seconds=settings.SERVICE_DOWN_TIME)

    @property
    def silent_for(self) -> timedelta:
        """The time since its last heartbeat when the row was read; negative for a heartbeat in the future."""
        now: datetime = getattr(self, "read_at", None) or timezone.now()
        return now - (self.last_seen_up or self.created_at)

    @property
    def takes_requests(self) -> bool:
        """Whether it begins new requests for its servers."""
        return self.drain_state in ("", "emptying")

    @property
    def is_returning(self) -> bool:
        """Whether its servers are to move back to it, because the drain was undone."""
        return bool(self.drain_moves) and not self.drain_wanted and self.drain_asked_at is None

    @property
    def drain_state(self) -> str:
        """Empty while it takes new work, then "draining", then "drained"; a request it has not read yet counts.

        "emptying": its servers move away before it drains. It works for those it has, and takes no others.
        """
        if self.draining_since is None and not self.drain_wanted:
            return "emptying" if self.drain_moves and self.drain_asked_at is not None else ""
        return "drained" if self.drained_at is not None else "draining"


class ComputeNode(CellModel):
    """A hypervisor or bare-metal node: its inventory and what is claimed of it. Memory MiB, disk GiB."""

    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    host = models.CharField(max_length=255)
    hypervisor_hostname = models.CharField(max_length=255, unique=True)
    hypervisor_type = models.CharField(max_length=64)
    hypervisor_version = models.PositiveIntegerField()
    host_ip = models.CharField(max_length=39)
    cpu_info = models.JSONField(default=dict)
    started_at = models.DateTimeField(null=True)  # when the machine booted
    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()
    cpu_ratio = models.FloatField(default=16.0)
    ram_ratio = models.FloatField(default=1.0)
    disk_ratio = models.FloatField(default=1.0)
    vcpus_used = models.PositiveIntegerField(default=0)
    memory_mb_used = models.PositiveIntegerField(default=0)
    disk_gb_used = models.PositiveIntegerField(default=0)
    # bare metal: one host serves many nodes, and each holds one server or none
    is_whole = models.BooleanField(default=False, db_default=False)
    resource_class = models.CharField(max_length=255, blank=True, default="", db_default="")
    out_of_use = models.CharField(max_length=255, blank=True, default="", db_default="")  # why it takes no server
    updated_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("host",), name="nodes_of_host"),)

    def __str__(self) -> str:
        return self.hypervisor_hostname


class DrainMigration(CellModel):
    """A server that a drain moves off its host. The row exists until the server is back, or is not to return."""

    class State(models.TextChoices):
        """How far the migration is."""

        WAITING = "waiting"  # until a move may begin
        MOVING = "moving"
        AWAY = "away"
        BLOCKED = "blocked"  # it cannot be moved; `why` says what to do
        RETURN_WAITING = "return_waiting"
        RETURNING = "returning"

    server_id = models.CharField(max_length=36)
    host = models.CharField(max_length=255)  # the host it leaves
    moved_to = models.CharField(max_length=255, blank=True, default="")
    state = models.CharField(max_length=16, choices=State.choices, default=State.WAITING)
    request_id = models.CharField(max_length=64, blank=True, default="")  # of its newest move
    tries = models.PositiveIntegerField(default=0)
    why = models.CharField(max_length=255, blank=True, default="")
    not_before = models.DateTimeField(null=True)  # the next try
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("server_id", "host"), name="one_departure_per_host"),)
        indexes = (models.Index(fields=("host", "state"), name="departures_of_host"),)

    def __str__(self) -> str:
        return f"{self.server_id} off {self.host}"


class Allocation(CellModel):
    """What one server holds of one node. Exists exactly while it is counted in the node's `*_used`."""

    server_id = models.CharField(max_length=36)
    node = models.ForeignKey(ComputeNode, on_delete=models.PROTECT, related_name="allocations")
    vcpus = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    disk_gb = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("server_id", "node"), name="one_claim_per_node"),)

    def __str__(self) -> str:
        return f"{self.server_id} on {self.node_id}"


# All of the targeted cell: schedulers and lists read them again and again.
EVERY_SERVICE = CompiledRecords(Service, lambda: Service.objects.order_by("id"), annotations=("read_at",))
EVERY_NODE = CompiledRecords(ComputeNode, lambda: ComputeNode.objects.order_by("id"))
