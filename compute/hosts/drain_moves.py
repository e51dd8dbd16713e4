"""Servers that leave a host so that it can drain, and come back to it: what is on record of them. In the targeted cell.

`compute/hosts/drain_migrations.py` moves them. Here is who is to go, who has gone, and what an operator's word does to
the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from cloud.words import counted
from compute.models import DrainMigration, HostNeed, Instance, InstanceAction

State = DrainMigration.State
IDLE = (State.WAITING, State.BLOCKED)  # to go, and nothing has begun
UNDER_WAY = (State.MOVING, State.RETURNING)
COMING = (State.RETURN_WAITING, State.RETURNING)
AT_ONCE = 4  # when nobody says how many


@dataclass(frozen=True, slots=True)
class DrainMove:
    """One server of the list."""

    server_id: str
    state: str
    at: str  # where it lives now
    to: str = ""  # where it is going, or has gone
    percent: int = 0
    why: str = ""  # what it waits for, or what is in its way and what to do about it
    tries: int = 0
    next_try: datetime | None = None
    request_id: str = ""

    @property
    def is_blocked(self) -> bool:
        """Whether it stays until somebody does something, or until there is room."""
        return self.state == State.BLOCKED or (self.state == State.RETURN_WAITING and bool(self.why))


@dataclass(frozen=True, slots=True)
class DrainMoves:
    """The list of one host."""

    lines: tuple[DrainMove, ...] = ()
    left_alone: tuple[DrainMove, ...] = ()  # they are to have come back, and have another home

    def of(self, *states: str) -> list[DrainMove]:
        """Those in some states."""
        return [line for line in self.lines if line.state in states]

    @property
    def away(self) -> list[DrainMove]:
        """Gone."""
        return self.of(State.AWAY)

    @property
    def under_way(self) -> list[DrainMove]:
        """Being moved now, either way."""
        return self.of(*UNDER_WAY)

    @property
    def blocked(self) -> list[DrainMove]:
        """Those that stay where they are for a reason."""
        return [line for line in self.lines if line.is_blocked]

    @property
    def staying(self) -> list[DrainMove]:
        """Those that are to leave, and have not begun to."""
        return self.of(*IDLE)

    @property
    def coming(self) -> list[DrainMove]:
        """Those that are to come back, and have not yet."""
        return self.of(*COMING)

    @property
    def sentence(self) -> str:
        """How far it is; "" where nothing is moved."""
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
    """How far the moves from, or back to, a host are. One query; three where something is on the list."""
    return read_all([host]).get(host, DrainMoves())


def read_all(hosts: Collection[str]) -> dict[str, DrainMoves]:
    """As `read`, for all of them with as many queries."""
    rows = list(DrainMigration.objects.filter(host__in=hosts).order_by("pk")) if hosts else []
    if not rows:
        return {}
    living = Instance.objects.filter(uuid__in=[row.server_id for row in rows], deleted=False)
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
    """How many of each state there are, by host. One query."""
    rows = DrainMigration.objects.order_by().values_list("host", "state").annotate(Count("pk"))
    found: dict[str, dict[str, int]] = {}
    for host, state, number in rows:
        found.setdefault(host, {})[state] = number
    return found


def list_servers(host: str) -> None:
    """Every server of the host is on the list, and nobody else waits there: deleted ones, and those others moved."""
    here = list(Instance.objects.filter(host=host, deleted=False).order_by("pk").values_list("uuid", flat=True))
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
    """Whether no server lives there or is about to, and nobody of the list is on the way or to go."""
    lives = Instance.objects.filter(host=host, deleted=False).exists()
    listed = DrainMigration.objects.filter(host=host).exclude(state=State.AWAY).exists()
    # A move to it that is past its checks goes on, and its server has to leave again.
    needed = HostNeed.objects.filter(host=host, action__finished_at__isnull=True).exists()
    return not (lives or listed or needed)


def cancel(host: str) -> None:
    """Who has not begun to move stays where it is. What is under way goes on to its end."""
    DrainMigration.objects.filter(host=host, state__in=IDLE).delete()
    cancel_return(host)


def cancel_return(host: str) -> None:
    """Who was to come back, and has not begun, is as far as before."""
    waiting = DrainMigration.objects.filter(host=host, state=State.RETURN_WAITING)
    waiting.update(state=State.AWAY, why="", not_before=None)


def retry_failed(host: str) -> None:
    """A drain begins: who left in an earlier one has a new home."""
    DrainMigration.objects.filter(host=host, state=State.AWAY).delete()


def request_return(host: str) -> list[DrainMove]:
    """Those that left are to come back. Who lives elsewhere since is left alone: those, and where they are."""
    rows = list(DrainMigration.objects.filter(host=host, state=State.AWAY).order_by("pk"))
    at = _homes(rows)
    elsewhere = [row for row in rows if at.get(row.server_id) not in (row.moved_to, host, None)]
    coming = [row.pk for row in rows if at.get(row.server_id) == row.moved_to]
    of_host = DrainMigration.objects.filter(host=host, state=State.AWAY)
    of_host.filter(pk__in=coming).update(state=State.RETURN_WAITING, tries=0, why="", not_before=None)
    of_host.exclude(pk__in=coming).delete()
    return [DrainMove(row.server_id, State.AWAY, at[row.server_id], row.moved_to) for row in elsewhere]


def _homes(rows: Iterable[DrainMigration]) -> dict[str, str]:
    """Where the living ones are."""
    living = Instance.objects.filter(uuid__in=[row.server_id for row in rows], deleted=False)
    return dict(living.values_list("uuid", "host"))
