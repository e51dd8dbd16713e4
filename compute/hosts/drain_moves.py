"""The list of drain migrations of a host: servers that leave it so that it can drain, and return. In the targeted cell.

This module reads the list and applies operator requests to it; `compute/hosts/drain_migrations.py` moves the servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from cloud.words import counted
from compute.models import DrainMigration, HostNeed, Instance, InstanceAction

State = DrainMigration.State
IDLE = (State.WAITING, State.BLOCKED)  # to leave, and the move has not begun
UNDER_WAY = (State.MOVING, State.RETURNING)
COMING = (State.RETURN_WAITING, State.RETURNING)
AT_ONCE = 4  # default number of parallel moves


@dataclass(frozen=True, slots=True)
class DrainMove:
    """One server of the list."""

    server_id: str
    state: str
    at: str  # its host now
    to: str = ""  # the destination of its move, or the host it went to
    percent: int = 0
    why: str = ""  # what it waits for, or what blocks it and what to do about it
    tries: int = 0
    next_try: datetime | None = None
    request_id: str = ""

    @property
    def is_blocked(self) -> bool:
        """Whether the server stays until an operator or user acts, or until there is room."""
        return self.state == State.BLOCKED or (self.state == State.RETURN_WAITING and bool(self.why))


@dataclass(frozen=True, slots=True)
class DrainMoves:
    """The list of one host."""

    lines: tuple[DrainMove, ...] = ()
    left_alone: tuple[DrainMove, ...] = ()  # asked to return, but moved to another host since

    def of(self, *states: str) -> list[DrainMove]:
        """Return the servers in the given states."""
        return [line for line in self.lines if line.state in states]

    @property
    def away(self) -> list[DrainMove]:
        """Servers that have left."""
        return self.of(State.AWAY)

    @property
    def under_way(self) -> list[DrainMove]:
        """Servers that are being moved now, in either direction."""
        return self.of(*UNDER_WAY)

    @property
    def blocked(self) -> list[DrainMove]:
        """Servers that cannot be moved now; `why` says the reason."""
        return [line for line in self.lines if line.is_blocked]

    @property
    def staying(self) -> list[DrainMove]:
        """Servers that are to leave and whose move has not begun."""
        return self.of(*IDLE)

    @property
    def coming(self) -> list[DrainMove]:
        """Servers that are to return and have not arrived."""
        return self.of(*COMING)

    @property
    def sentence(self) -> str:
        """The progress as text for people; empty when the list is empty."""
        if not self.lines:
            return ""
        if self.coming:
            far = f"{len(self.coming)} still to come back"
        else:
            far = f"{len(self.away)} of {counted(len(self.lines), 'server')} moved away"
        waiting = [line for line in self.of(State.WAITING, State.RETURN_WAITING) if not line.is_blocked]
        others = {"on their way": self.under_way, "waiting": waiting, "blocked": self.blocked}
        return ", ".join([far, *(f"{len(found)} {word}" for word, found in others.items() if found)])


def read(host: str) -> DrainMoves:
    """Return the drain migrations of a host. One query; three when the list is not empty."""
    return read_all([host]).get(host, DrainMoves())


def read_all(hosts: Collection[str]) -> dict[str, DrainMoves]:
    """As `read()`, for many hosts with the same number of queries. Hosts with an empty list are not in the result."""
    rows = list(DrainMigration.objects.filter(host__in=hosts).order_by("pk")) if hosts else []
    if not rows:
        return {}
    living = Instance.objects.living(uuid__in=[row.server_id for row in rows])
    servers = {uuid: (at, progress) for uuid, at, progress in living.values_list("uuid", "host", "progress")}
    asked = [row.request_id for row in rows if row.state in UNDER_WAY]
    moves = InstanceAction.objects.filter(request_id__in=asked).values_list("request_id", "params__destination")
    going = dict(moves)
    lines: dict[str, list[DrainMove]] = {}
    for row in rows:
        at, percent = servers.get(row.server_id, ("", 0))
        to = (going.get(row.request_id) or "") if row.state in UNDER_WAY else row.moved_to
        moving = (100 if at == to else percent) if row.state in UNDER_WAY else 0
        line = DrainMove(row.server_id, row.state, at, to, moving, row.why, row.tries, row.not_before, row.request_id)
        lines.setdefault(row.host, []).append(line)
    return {host: DrainMoves(tuple(of_host)) for host, of_host in lines.items()}


def counts() -> dict[str, dict[str, int]]:
    """Return the number of drain migrations by host and state. One query."""
    rows = DrainMigration.objects.order_by().values_list("host", "state").annotate(Count("pk"))
    found: dict[str, dict[str, int]] = {}
    for host, state, number in rows:
        found.setdefault(host, {})[state] = number
    return found


def list_servers(host: str) -> None:
    """Bring the list up to date: add every server of the host, drop those no longer there.

    Dropped are servers that are deleted or that others moved away before their move began. Idempotent.
    """
    here = list(Instance.objects.living(host=host).order_by("pk").values_list("uuid", flat=True))
    listed = dict(DrainMigration.objects.filter(host=host).values_list("server_id", "state"))
    new = [DrainMigration(host=host, server_id=uuid) for uuid in here if uuid not in listed]
    DrainMigration.objects.bulk_create(new, ignore_conflicts=True)
    back = [uuid for uuid in here if listed.get(uuid) in (State.AWAY, State.RETURN_WAITING)]
    of_host = DrainMigration.objects.filter(host=host)
    of_host.filter(server_id__in=back, state__in=(State.AWAY, State.RETURN_WAITING)).update(
        state=State.WAITING, tries=0, why="", not_before=None, moved_to=""
    )
    gone = [uuid for uuid, state in listed.items() if state in IDLE and uuid not in set(here)]
    of_host.filter(server_id__in=gone, state__in=IDLE).delete()


def is_empty(host: str) -> bool:
    """Whether no server lives on the host or is about to, and no server of the list is still to move."""
    lives = Instance.objects.living(host=host).exists()
    listed = DrainMigration.objects.filter(host=host).exclude(state=State.AWAY).exists()
    # A move to this host that is past its checks goes on; its server then has to leave again.
    needed = HostNeed.objects.filter(host=host, action__finished_at__isnull=True).exists()
    return not (lives or listed or needed)


def cancel(host: str) -> None:
    """Drop the servers whose move has not begun: they stay where they are. Moves under way go on to their end."""
    DrainMigration.objects.filter(host=host, state__in=IDLE).delete()
    cancel_return(host)


def cancel_return(host: str) -> None:
    """Put servers whose return has not begun back to AWAY."""
    waiting = DrainMigration.objects.filter(host=host, state=State.RETURN_WAITING)
    waiting.update(state=State.AWAY, why="", not_before=None)


def forget_moved_away(host: str) -> None:
    """Forget the servers that left in an earlier drain, when a new drain begins: they stay on their new hosts."""
    DrainMigration.objects.filter(host=host, state=State.AWAY).delete()


def request_return(host: str) -> list[DrainMove]:
    """Mark the servers that left so that they return; return those that are left alone.

    Left alone are servers that were moved to yet another host since; the result says where they are.
    """
    rows = list(DrainMigration.objects.filter(host=host, state=State.AWAY).order_by("pk"))
    at = _homes(rows)
    elsewhere = [row for row in rows if at.get(row.server_id) not in (row.moved_to, host, None)]
    coming = [row.pk for row in rows if at.get(row.server_id) == row.moved_to]
    of_host = DrainMigration.objects.filter(host=host, state=State.AWAY)
    of_host.filter(pk__in=coming).update(state=State.RETURN_WAITING, tries=0, why="", not_before=None)
    of_host.exclude(pk__in=coming).delete()
    return [DrainMove(row.server_id, State.AWAY, at[row.server_id], row.moved_to) for row in elsewhere]


def _homes(rows: Iterable[DrainMigration]) -> dict[str, str]:
    """The hosts of the servers that are not deleted."""
    living = Instance.objects.living(uuid__in=[row.server_id for row in rows])
    return dict(living.values_list("uuid", "host"))
