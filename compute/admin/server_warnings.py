"""Warnings beside a server's status: its host is lost, or no open step belongs to its task state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from cells import admin_widgets as look
from compute.models import Instance, Service, Step

STUCK_AFTER = timedelta(minutes=2)  # just after it begins or ends, an action briefly has no open step
NOTHING = SafeString("")


@dataclass(frozen=True, slots=True)
class HostsOfServers:
    """The hosts of some servers, and which of these servers have open steps."""

    hosts: dict[str, Service]
    at_work: frozenset[str]  # servers with an open step

    def sign(self, instance: Instance) -> SafeString:
        """Return the warnings of a server; empty when there is none."""
        signs = [one for one in (self._host(instance), self._task(instance)) if one]
        return format_html(" ".join(["{}"] * len(signs)), *signs) if signs else NOTHING

    def _host(self, instance: Instance) -> SafeString:
        if not instance.host or instance.deleted:
            return NOTHING
        service = self.hosts.get(instance.host)
        if service is None or service.is_up:
            return NOTHING if service else look.label("host unknown", look.WARN, "▽", "It has no compute service.")
        if service.ended_at is not None:
            return look.label("host stopped", look.WARN, "▽", f"{look.age(service.ended_at)} ago, by a normal stop")
        beat = f"The last heartbeat of the host was {look.age(service.last_seen_up)} ago"
        return look.label("host lost", look.WARN, "▼", f"{beat}; the status may be outdated")

    def _task(self, instance: Instance) -> SafeString:
        if instance.task_state is None or instance.uuid in self.at_work:
            return NOTHING
        if timezone.now() - instance.updated_at < STUCK_AFTER:
            return NOTHING
        why = f"{instance.task_state} for {look.age(instance.updated_at)}, without an open step"
        return look.label("stuck", look.WARN, "⧗", why)


def around(instances: Iterable[Instance]) -> HostsOfServers:
    """Return the data for the warnings of some servers, with two queries of the targeted cell."""
    some = list(instances)
    hosts = Service.objects.computes(host__in={one.host for one in some if one.host})
    busy = [one.uuid for one in some if one.task_state]
    open_steps = Step.objects.open(server_id__in=busy)
    return HostsOfServers({one.host: one for one in hosts}, frozenset(open_steps.values_list("server_id", flat=True)))
