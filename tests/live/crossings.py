"""How servers left a host that was emptied: when each was on its way, and how many at the same time, by the journal.

A cold move counts until it is confirmed, as for whoever holds it to a limit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.live.cloud import Cloud

QUESTION = """SELECT server_id, action, started_at, finished_at, user_id FROM compute_instanceaction
              WHERE CAST(params AS text) LIKE '%"empties"%' ORDER BY id"""


def of(cloud: Cloud, cell: str = "cell1") -> list[tuple[str, float, float]]:
    """(server, begun, ended) of every move of ours, in seconds since 1970; infinite while it goes on."""
    found: list[tuple[str, float, float]] = []
    for server_id, action, begun, ended, _ in cloud.ask(cell, QUESTION):
        if action == "confirmResize":
            at = max(n for n, (uuid, _, _) in enumerate(found) if uuid == server_id)
            found[at] = (server_id, found[at][1], seconds(ended))
        else:
            found.append((server_id, seconds(begun), seconds(ended)))
    return found


def most_at_once(moves: list[tuple[str, float, float]]) -> int:
    """How many were on their way at the same time."""
    changes = sorted([(begun, 1) for _, begun, _ in moves] + [(ended, -1) for _, _, ended in moves])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def seconds(moment: Any) -> float:
    """As PostgreSQL or SQLite has it, since 1970."""
    if moment is None:
        return float("inf")
    at = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
