"""The services of a cell, what its hypervisors offer, and who has claimed what."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from cells import database_clock
from cells.models import CellModel
from compute.models.instance import new_uuid

COMPUTE, CONDUCTOR, SCHEDULER = "nova-compute", "nova-conductor", "nova-scheduler"


class Services(models.QuerySet["Service"]):
    """Services by their heartbeats, which are times of the database."""

    def alive(self) -> Services:
        """Those that beat: not longer ago than SERVICE_DOWN_TIME, and no goodbye since."""
        beats = database_clock.is_recent("last_seen_up", settings.SERVICE_DOWN_TIME)
        return self.filter(beats, ended_at__isnull=True)

    def set_right(self) -> int:
        """Take heartbeats of the future, of a clock that was wrong, for heartbeats of now; how many there were.

        A process that lives overwrites it soon; one that is gone is down after SERVICE_DOWN_TIME.
        """
        ahead = self.filter(last_seen_up__gt=database_clock.now(settings.SERVICE_DOWN_TIME))
        return ahead.update(last_seen_up=database_clock.now())


class _WithTheTime(models.Manager.from_queryset(Services)):  # type: ignore[misc]
    """Each row comes with the time its database had when it was read."""

    def get_queryset(self) -> Services:
        return super().get_queryset().annotate(read_at=database_clock.now())


class Service(CellModel):
    """One process that works: its heartbeat, what the operator wants of it, and its present life.

    `drain_*` is what somebody wants; `draining_since`, `drained_at`, `in_progress` and `ended_at` are what the
    process itself says.
    """

    uuid = models.CharField(max_length=36, unique=True, default=new_uuid)
    binary = models.CharField(max_length=64)
    host = models.CharField(max_length=255)
    availability_zone = models.CharField(max_length=255, default="internal")
    disabled = models.BooleanField(default=False)
    disabled_reason = models.CharField(max_length=255, null=True)  # noqa: DJ001  the API tells null from ""
    forced_down = models.BooleanField(default=False)
    last_seen_up = models.DateTimeField(null=True)
    seen_when_forced = models.DateTimeField(null=True)  # its last heartbeat when somebody said that it is down
    version = models.PositiveIntegerField(default=1)
    incarnation = models.CharField(max_length=36, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(null=True)
    # with defaults of the database: workers of the version before write rows, too, while a cloud is upgraded
    drain_wanted = models.BooleanField(default=False, db_default=False)
    drain_then_exit = models.BooleanField(default=False, db_default=False)  # else it stays until it is undrained
    drain_by = models.CharField(max_length=255, blank=True, default="", db_default="")
    drain_reason = models.CharField(max_length=255, blank=True, default="", db_default="")
    drain_asked_at = models.DateTimeField(null=True)
    drain_deadline = models.DateTimeField(null=True)  # null: it takes as long as it takes
    draining_since = models.DateTimeField(null=True)  # null: it takes new work
    drained_at = models.DateTimeField(null=True)  # nothing needs it since
    in_progress = models.PositiveIntegerField(default=0, db_default=0)  # operations that need it, at its last beat
    ended_at = models.DateTimeField(null=True)  # it said goodbye; its next life takes this back
    drain_moves = models.PositiveIntegerField(default=0, db_default=0)  # servers moved away at once; 0: they stay

    objects = _WithTheTime()
    read_at: datetime  # the database's time then; rows that were not read have none

    class Meta:
        constraints = (models.UniqueConstraint(fields=("binary", "host"), name="one_service_per_host"),)

    def __str__(self) -> str:
        return f"{self.binary}@{self.host}"

    @property
    def is_up(self) -> bool:
        """Whether it is there to work, as far as anybody knows: it beats, and nobody has forced it down."""
        return self.beats and not self.forced_down

    @property
    def beats(self) -> bool:
        """No goodbye, and its heartbeat is at most SERVICE_DOWN_TIME away from the database's time, before or after."""
        if self.ended_at is not None:
            return False
        return abs(self.silent_for) <= timedelta(seconds=settings.SERVICE_DOWN_TIME)

    @property
    def silent_for(self) -> timedelta:
        """The time since its last heartbeat when the row was read."""
        now: datetime = getattr(self, "read_at", None) or timezone.now()
        return now - (self.last_seen_up or self.created_at)

    @property
    def takes_requests(self) -> bool:
        """Whether it begins what is asked of its servers."""
        return self.drain_state in ("", "emptying")

    @property
    def is_returning(self) -> bool:
        """Whether it is to have its servers back, as nobody wants it to drain any more."""
        return bool(self.drain_moves) and not self.drain_wanted and self.drain_asked_at is None

    @property
    def drain_state(self) -> str:
        """ "" while it takes new work, then "draining", then "drained". A wish it has not heard yet counts.

        "emptying": its servers are to leave before it drains. It works for those it has, and takes no others.
        """
        if self.draining_since is None and not self.drain_wanted:
            return "emptying" if self.drain_moves and self.drain_asked_at is not None else ""
        return "drained" if self.drained_at is not None else "draining"


class ComputeNode(CellModel):
    """A hypervisor: what it has and what is claimed of it. Memory MiB, disk GiB."""

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
    # of bare metal: one host serves many nodes, and each is one server's or nobody's
    is_whole = models.BooleanField(default=False, db_default=False)
    resource_class = models.CharField(max_length=255, blank=True, default="", db_default="")
    out_of_use = models.CharField(max_length=255, blank=True, default="", db_default="")  # why it takes no server
    updated_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("host",), name="nodes_of_host"),)

    def __str__(self) -> str:
        return self.hypervisor_hostname


class DrainMigration(CellModel):
    """A server that a drain moves off its host, or has moved, until it is back or is not to come back."""

    class State(models.TextChoices):
        """How far it is."""

        WAITING = "waiting"  # for its turn
        MOVING = "moving"
        AWAY = "away"
        BLOCKED = "blocked"  # it cannot be moved; `why` says what to do
        RETURN_WAITING = "return_waiting"
        RETURNING = "returning"

    server_id = models.CharField(max_length=36)
    host = models.CharField(max_length=255)  # that it leaves
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
