"""The JSON of migrations."""

from __future__ import annotations

from typing import Any

from compute.api.base import links
from compute.api.fields import moment
from compute.contract.microversion import Version
from compute.migration import history
from compute.migration.history import IN_PROGRESS, status
from compute.migration.moves import MoveParams
from compute.models import InstanceAction


def as_json(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """Return the fields that both lists of migrations have."""
    params = MoveParams.load(row.params)

    def host(name: str) -> str | None:
        return name if name and show_hosts else None

    shown = {
        "id": row.pk, "status": status(row), "source_compute": host(params.source),
        "source_node": host(params.source_node), "dest_compute": host(params.destination),
        "dest_node": host(params.destination_node), "dest_host": None,
        "created_at": moment(row.started_at), "updated_at": moment(row.updated_at),
    }  # fmt: skip
    if version >= (2, 59):
        shown["uuid"] = params.uuid or None
    if version >= (2, 80):
        shown |= {"user_id": row.user_id, "project_id": row.project_id}
    return shown


def of_server(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """Return a migration, with its progress, for /servers/{id}/migrations."""
    progress = history.progress(row)
    measured: dict[str, int] = {}
    for name, total, left in (("memory", progress.memory_total, progress.memory_left),
                              ("disk", progress.disk_total, progress.disk_left)):  # fmt: skip
        measured |= {
            f"{name}_total_bytes": total, f"{name}_processed_bytes": total - left, f"{name}_remaining_bytes": left,
        }  # fmt: skip
    return as_json(row, version, show_hosts=show_hosts) | measured | {"server_uuid": row.server_id}


def of_all(row: InstanceAction, version: Version, *, show_hosts: bool) -> dict[str, Any]:
    """Return a migration for /os-migrations."""
    flavor = [None, None] if history.is_evacuation(row) else MoveParams.load(row.params).flavor_numbers  # as in Nova
    shown = as_json(row, version, show_hosts=show_hosts) | {
        "instance_uuid": row.server_id, "old_instance_type_id": flavor[0], "new_instance_type_id": flavor[1],
    }  # fmt: skip
    if version >= (2, 23):
        shown["migration_type"] = history.types()[row.key]
        if history.is_live(row) and shown["status"] in IN_PROGRESS:
            shown["links"] = links(f"/servers/{row.server_id}/migrations/{row.pk}")
    return shown
