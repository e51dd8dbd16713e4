"""Texts and badges that say why an open step, or a server to be placed, waits: from the services' rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells.models import BuildRequest
from compute.builds.leases import LEASE
from compute.hosts.drain import MOST, OpenOperation
from compute.models import Service, Step
from compute.models.host import COMPUTE, CONDUCTOR, SCHEDULER
from compute.operations import dispatch

QUEUED = Step.State.QUEUED


@dataclass(frozen=True, slots=True)
class Services:
    """The compute and conductor services of one cell."""

    hosts: dict[str, Service]
    conductors: list[Service]

    @classmethod
    def of(cls, services: Iterable[Service]) -> Services:
        """Return the services, grouped by kind."""
        every = list(services)
        return cls(
            {one.host: one for one in every if one.binary == COMPUTE},
            [one for one in every if one.binary == CONDUCTOR],
        )

    def wait_of(self, step: Step) -> SafeString | str:
        """Return what an open step waits for; "-" for a step that runs, or that records no reason."""
        blocked = self._host(step) if step.host else _why_none_available("conductor", self.conductors)
        if blocked:
            return blocked
        if step.state == Step.State.WAITING:
            return _guest(step) if step.timer is not None else step.details or "-"
        if step.state != QUEUED:
            return "-"
        if step.not_before is not None and step.not_before > timezone.now():
            return f"its next attempt, in {look.seconds((step.not_before - timezone.now()).total_seconds())}"
        return f"a worker of {step.host}" if step.host else "a conductor"

    def _host(self, step: Step) -> SafeString | str:
        service = self.hosts.get(step.host)
        if service is None:
            return format_html("{} {}", look.label("no service", look.BAD, "▼"), step.host)
        if not service.is_up:
            word = "stopped" if service.ended_at else "down"
            sign = look.label(word, look.BAD, "▼", "The step continues when the host is up again.")
            return format_html("{} {}", sign, step.host)
        if step.state == QUEUED and step.queue == dispatch.REQUESTS and not service.takes_requests:
            why = f": {service.drain_reason}" if service.drain_reason else ""
            sign = look.label(service.drain_state, look.WARN, "▽", service.drain_by)
            return format_html("{} {}{}", sign, step.host, why)
        return ""


def _guest(step: Step) -> SafeString | str:
    """Return how much time is left to a guest that shuts down."""
    if step.deadline is None:
        return "guest shutdown"
    left = (step.deadline - timezone.now()).total_seconds()
    if left > 0:
        return f"guest shutdown, at most {look.seconds(left)} more"
    return format_html("{} guest shutdown, by {}", look.label("overdue", look.WARN, "!"), look.seconds(-left))


def schedulers(services: Iterable[Service]) -> list[Service]:
    """Return the schedulers among the services."""
    return [one for one in services if one.binary == SCHEDULER]


def placing(service: Service) -> list[OpenOperation]:
    """Return the operations of a scheduler: the build requests it holds a lease on. Other services have none."""
    if service.binary != SCHEDULER:
        return []
    held = BuildRequest.objects.filter(lease_holder__startswith=f"{service.host}/", lease_until__gt=timezone.now())
    return [
        OpenOperation(
            "create", "place", Step.State.RUNNING, one.server_id, one.request_id, service.host,
            since=one.lease_until - LEASE, deadline=one.lease_until,
        )
        for one in held.defer("instance", "action").order_by("lease_until")[:MOST] if one.lease_until
    ]  # fmt: skip


def state_of(request: BuildRequest) -> SafeString:
    """Return the badge of a build request: queued, running under a lease, or lease expired."""
    if not request.lease_holder or request.lease_until is None:
        return look.label("queued", look.GREY, "…")
    if request.lease_until < timezone.now():
        return look.label("lease expired", look.WARN, "!", request.lease_holder)
    return look.label("running", look.BUSY, "◌", request.lease_holder)


def wait_of_request(request: BuildRequest, known: list[Service]) -> SafeString | str:
    """Return what a build request waits for."""
    if request.lease_holder and request.lease_until and request.lease_until > timezone.now():
        left = (request.lease_until - timezone.now()).total_seconds()
        return f"{request.lease_holder.split('/')[0]}, lease expires in {look.seconds(left)}"
    return _why_none_available("scheduler", known) or "a scheduler"


def _why_none_available(kind: str, services: list[Service]) -> SafeString | str:
    """Return why no service of an interchangeable kind takes the work; "" when one does."""
    living = [one for one in services if one.is_up]
    if not living:
        return look.label(f"no {kind} is up", look.BAD, "▼")
    if all(one.drain_state for one in living):
        return look.label(f"every {kind} is draining", look.WARN, "▽", ", ".join(one.host for one in living))
    return ""
