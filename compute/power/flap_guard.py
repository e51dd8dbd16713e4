"""Flap protection: a server that is put back again and again is left alone, as something else keeps changing it.

The count is taken from the journal, so it survives restarts. All in the targeted cell.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, Max
from django.utils import timezone

from compute.models import InstanceAction
from compute.operations import registry
from compute.operations.action import Role

KEY = "PowerFlaps"  # the key of a history entry, which no action has; its updated_at is the server's last change


@dataclass(frozen=True, slots=True)
class FlapCounter:
    """Flapping servers. `begin`: left alone from now on; `last`: the newest entry of those left alone already."""

    begin: frozenset[str]
    last: dict[str, int]

    @property
    def words(self) -> str:
        """The reason, as text for history and log."""
        often, seconds = settings.POWER_FLAPS, settings.POWER_FLAP_WINDOW
        return f"restored {often} times within {seconds} s; suspended until nothing changes for {seconds} s"

    def hold(self, server_id: str) -> bool:
        """Return whether a server is left alone."""
        return server_id in self.begin or server_id in self.last

    def begins(self, server_id: str) -> bool:
        """Return whether a server is left alone from now on."""
        return server_id in self.begin

    def go_on(self, server_ids: Collection[str]) -> None:
        """Restart the quiet period of servers that have changed again. In the caller's transaction."""
        entries = [self.last[server_id] for server_id in server_ids if server_id in self.last]
        if entries:
            InstanceAction.objects.filter(pk__in=entries).update(updated_at=timezone.now())


def check(server_ids: Sequence[str]) -> FlapCounter:
    """Return which of the servers that would be put back are left alone. One query."""
    if not server_ids or not settings.POWER_FLAPS:
        return FlapCounter(frozenset(), {})
    back = registry.key_of(Role.RESTORE_POWER_STATE)
    recent = InstanceAction.objects.filter(server_id__in=server_ids, key__in=(back, KEY), updated_at__gt=_since())
    counted = list(recent.values_list("server_id", "key").annotate(Count("pk"), Max("pk")).order_by())
    last = {server_id: newest for server_id, key, _, newest in counted if key == KEY}
    often = {server_id for server_id, key, times, _ in counted if key == back and times >= settings.POWER_FLAPS}
    return FlapCounter(frozenset(often - last.keys()), last)


def is_on(entry: InstanceAction) -> bool:
    """Return whether a history entry says that its server is left alone now."""
    return entry.key == KEY and entry.updated_at > _since()


def _since() -> datetime:
    return timezone.now() - timedelta(seconds=settings.POWER_FLAP_WINDOW)
