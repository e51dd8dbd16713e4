"""What the pages show of a server whose cell is down: its last known state, and how old that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.safestring import SafeString

from cells import admin_widgets as look
from cells.models import ServerSnapshot
from compute import state
from compute.admin import badges


def of(server_ids: Iterable[str]) -> dict[str, ServerSnapshot]:
    """Return the snapshots by server id, in one query."""
    return dict(ServerSnapshot.objects.select_related("cell").in_bulk(list(server_ids)))


def age(last: ServerSnapshot) -> str:
    """Return how long ago the state was last confirmed."""
    return look.age(last.cell.swept_at or last.changed_at)


def status(last: ServerSnapshot) -> SafeString:
    """Return the badge of the last known status. It is grey, because colours mean the present state."""
    word = state.status(last.vm_state, last.task_state or None)
    return look.label(f"was {word}", look.GREY, badges.STATUS.get(word, ("", ""))[1], f"{age(last)} ago")


def rows(last: ServerSnapshot) -> list[tuple[str, Any]]:
    """Return (title, value) for the page of the server."""
    addresses = [one.get("addr", "") for network in last.addresses.values() for one in network]
    return [
        ("Name", last.name),
        ("Status", status(last)),
        ("State", f"{last.vm_state} / {last.task_state or 'idle'}"),
        ("Power", badges.power(last.power_state)),
        ("Host", last.host or "-"),
        ("Flavor", last.flavor or "-"),
        ("Addresses", ", ".join(addresses) or "-"),
        ("Last confirmed", f"{last.cell.swept_at or last.changed_at:%F %T} UTC ({age(last)} ago)"),
        ("Last change", f"{last.changed_at:%F %T} UTC"),
    ]
