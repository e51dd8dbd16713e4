"""Migrations as the API shows them: a view of the journal, for there is no other record of them."""

from __future__ import annotations

from typing import Any

from compute.api.base import links
from compute.api.wire import moment
from compute.microversion import Version
from compute.models import InstanceAction, Step

LIVE = "MigrateLive"
TYPES = {LIVE: "live-migration", "Resize": "resize", "Migrate": "migration"}
_MEASURES = ("memory", "disk")
# step that is open -> migration.status
_ON_THE_WAY = {
    "pick": "accepted", "check_destination": "queued", "check_source": "queued", "expect": "preparing",
    "migrate": "running", "arrive": "post-migrating", "clean_up_source": "post-migrating",
}  # fmt: skip
_COLD = {"accepted": "pre-migrating", "queued": "pre-migrating", "preparing": "pre-migrating", "running": "migrating"}
IN_PROGRESS = frozenset({"accepted", "queued", "preparing", "running", "post-migrating"})
MAY_FORCE = frozenset({"running"})
MAY_ABORT = frozenset({"running"})
MAY_ABORT_QUEUED = frozenset({"accepted", "queued", "preparing", "running"})  # since 2.65


def status(row: InstanceAction) -> str:
    """One of Nova's words. Reads the row's steps, so fetch them with it."""
    steps = sorted(row.steps.all(), key=lambda step: step.pk)
    if row.fault is not None or row.message:
        return _unsuccessful(row, steps)
    if row.finished_at is not None:
        return "completed" if row.key == LIVE else str(row.params.get("ended", "finished"))
    found = _ON_THE_WAY.get(steps[-1].name, "accepted") if steps else "accepted"
    if found == "running" and steps[-1].state == Step.State.QUEUED:
        found = "preparing"
    return found if row.key == LIVE else _COLD.get(found, found)


def as_json(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """What both lists have in common."""
    params = row.params

    def host(name: str) -> str | None:
        return params.get(name) if show_hosts else None

    shown = {
        "id": row.pk, "status": status(row), "source_compute": host("source"), "source_node": host("source_node"),
        "dest_compute": host("destination"), "dest_node": host("destination_node"), "dest_host": None,
        "created_at": moment(row.started_at), "updated_at": moment(row.updated_at),
    }  # fmt: skip
    if version >= (2, 59):
        shown["uuid"] = params.get("uuid")
    if version >= (2, 80):
        shown |= {"user_id": row.user_id, "project_id": row.project_id}
    return shown


def of_server(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """As /servers/{id}/migrations shows it, with its progress."""
    progress = row.params.get("progress", {})
    measured: dict[str, int] = {}
    for name in _MEASURES:
        total, left = progress.get(f"{name}_total", 0), progress.get(f"{name}_left", 0)
        measured |= {
            f"{name}_total_bytes": total, f"{name}_processed_bytes": total - left, f"{name}_remaining_bytes": left,
        }  # fmt: skip
    return as_json(row, version, show_hosts=show_hosts) | measured | {"server_uuid": row.server_id}


def of_all(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """As /os-migrations shows it."""
    flavor = row.params.get("flavor_ids", [None, None])
    shown = as_json(row, version, show_hosts=show_hosts) | {
        "instance_uuid": row.server_id, "old_instance_type_id": flavor[0], "new_instance_type_id": flavor[1],
    }  # fmt: skip
    if version >= (2, 23):
        shown["migration_type"] = TYPES[row.key]
        if row.key == LIVE and shown["status"] in IN_PROGRESS:
            shown["links"] = links(f"/servers/{row.server_id}/migrations/{row.pk}")
    return shown


def _unsuccessful(row: InstanceAction, steps: list[Step]) -> str:
    """cancelled by somebody, failed before anything had happened (error), or after (failed)."""
    states = {step.name: step.state for step in steps}
    if row.params.get("abort") or Step.State.CANCELLED in states.values():
        return "cancelled"
    return "failed" if "expect" in states else "error"
