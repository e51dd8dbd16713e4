"""The journal: the actions requested on servers, and the steps that carry them out.

The rows are the outbox and the progress display, and they are what `GET /servers/{id}/os-instance-actions` shows (an
event is a step; Compute API reference, os-instance-actions).
"""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.expressions import Combinable

from cells import database_clock
from cells.models import CellModel

LONGEST_PAUSE = 600.0  # seconds before another try; a time further ahead was set by a wrong clock


class InstanceAction(CellModel):
    """One operation requested on one server. Open until its last step has ended."""

    server_id = models.CharField(max_length=36)
    action = models.CharField(max_length=64)  # Nova's name: create, stop, reboot ...
    key = models.CharField(max_length=64)  # class name of its ServerAction
    request_id = models.CharField(max_length=64)
    user_id = models.CharField(max_length=64)
    project_id = models.CharField(max_length=64)
    params = models.JSONField(default=dict)
    started_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    message = models.CharField(max_length=255, null=True)  # noqa: DJ001  null or "Error", as Nova shows it
    outcome = models.TextField(blank=True, default="")  # how it ended, as text
    fault = models.JSONField(null=True)  # why it is being undone; at the end it becomes the server's fault

    class Meta:
        indexes = (
            models.Index(fields=("server_id", "-started_at"), name="actions_of_server"),
            models.Index(fields=("request_id",), name="actions_by_request"),
            models.Index(fields=("key", "-id"), name="actions_by_key"),
            models.Index(fields=("started_at",), name="open_actions", condition=Q(finished_at__isnull=True)),
            models.Index(fields=("key", "finished_at"), name="external_events", condition=Q(key="ExternalEvent")),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.server_id}"


class HostNeed(CellModel):
    """A host that an open action of several hosts has not finished with, wherever its present step runs.

    A draining host stays up until it has none.
    """

    action = models.ForeignKey(InstanceAction, on_delete=models.CASCADE, related_name="needs")
    host = models.CharField(max_length=255, db_index=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("action", "host"), name="one_need_per_host"),)

    def __str__(self) -> str:
        return f"{self.action_id} needs {self.host}"


class Steps(models.QuerySet["Step"]):
    """Steps of a cell."""

    def open(self, *conditions: Q | Combinable, **columns: Any) -> Steps:
        """Return those that have not ended, and meet the conditions."""
        return self.filter(*conditions, state__in=Step.OPEN, **columns)

    def due(self, *conditions: Q | Combinable, **columns: Any) -> Steps:
        """Return the queued ones whose pause is over by the database's clock, and that meet the conditions."""
        over = database_clock.is_over("not_before", LONGEST_PAUSE)
        return self.filter(over, *conditions, state=Step.State.QUEUED, **columns)


class Step(CellModel):
    """One unit of work of an action, run by one process. The row is the message.

    A Celery message only wakes a worker; the worker claims the row by one conditional UPDATE, so a message may come
    twice, late or never.
    """

    class State(models.TextChoices):
        """Where the step is."""

        QUEUED = "queued"
        RUNNING = "running"
        WAITING = "waiting"  # begun; no process holds it until its wait is over
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    OPEN = (State.QUEUED, State.RUNNING, State.WAITING)
    action = models.ForeignKey(InstanceAction, on_delete=models.CASCADE, related_name="steps")
    server_id = models.CharField(max_length=36)
    name = models.CharField(max_length=64)  # the method of the ServerAction
    event = models.CharField(max_length=128)  # Nova's event name
    host = models.CharField(max_length=255, blank=True, default="")  # "" = a conductor of the cell
    queue = models.CharField(max_length=16)
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    worker = models.CharField(max_length=255, blank=True, default="")
    incarnation = models.CharField(max_length=36, blank=True, default="")
    token = models.CharField(max_length=36, blank=True, default="", db_default="")  # fencing token, new at every claim
    attempts = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True)  # the next try: after a retryable failure, or at the end of a wait
    queued_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    sends = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)  # fixed at the first try; a restart does not move it
    timer = models.JSONField(null=True)  # of the guest that is shut down; see `virt/shutdown_timer.py`
    details = models.TextField(blank=True, default="")  # one line for the operator
    traceback = models.TextField(blank=True, default="")

    objects = Steps.as_manager()

    class Meta:
        indexes = (
            models.Index(fields=("action", "queued_at"), name="steps_of_action"),
            models.Index(
                fields=("host", "queued_at"), name="open_steps", condition=Q(state__in=["queued", "running", "waiting"])
            ),
            models.Index(
                fields=("server_id",), name="open_steps_of_server",
                condition=Q(state__in=["queued", "running", "waiting"]),
            ),
            models.Index(fields=("queued_at",), name="queued_steps", condition=Q(state="queued")),  # the relay
        )

    def __str__(self) -> str:
        return f"{self.name} of {self.server_id} ({self.state})"

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in self.OPEN
