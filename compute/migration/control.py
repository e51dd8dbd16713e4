"""A word to a live migration that goes on: abort, or end now. Whoever says it, it is in the server's history."""

from __future__ import annotations

from django.db.models import Q

from cloud.errors import BadRequest, Conflict, NotFound
from compute.migration import history
from compute.migration.history import LIVE
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal, registry, runner
from compute.operations.action import ActionRequest
from compute.state import TaskState


def find(instance: Instance, migration_id: str) -> InstanceAction:
    """One of the server's migrations, of whatever kind. Raises NotFound."""
    number = int(migration_id) if migration_id.isascii() and migration_id.isdigit() and len(migration_id) < 18 else 0
    row = history.migrations(Q(server_id=instance.uuid, pk=number)).first()
    if row is None:
        raise NotFound(f"Migration {migration_id} not found for instance {instance.uuid}")
    return row


def abort(instance: Instance, migration_id: str, asked: ActionRequest, *, queued: bool = True) -> None:
    """End it early; `queued`: also one that nobody has begun. Raises Conflict, NotFound, BadRequest."""
    may = history.MAY_ABORT_QUEUED if queued else history.MAY_ABORT
    row = _under_way(instance, migration_id, may, "abort live migration")
    _record(instance, "live_migration_cancel", row, asked)
    journal.change_params(row, abort=True)  # what runs reads the flag, draining or not
    for step in row.steps.select_related("action").filter(state=Step.State.QUEUED):
        runner.call_off(registry.named(row.key), step, "the migration was aborted")


def force(instance: Instance, migration_id: str, asked: ActionRequest) -> None:
    """Have it end now, whatever it costs the guest. Raises Conflict, NotFound, BadRequest."""
    row = _under_way(instance, migration_id, history.MAY_FORCE, "force complete")
    _record(instance, "live_migration_force_complete", row, asked)
    journal.change_params(row, force=True)


def _under_way(instance: Instance, migration_id: str, may: frozenset[str], what: str) -> InstanceAction:
    """In Nova's words."""
    if instance.task_state != TaskState.MIGRATING:
        raise Conflict(f"Cannot '{what}' instance {instance.uuid} while it is in task_state {instance.task_state}")
    row = find(instance, migration_id)
    status = history.status(row)
    if row.key != LIVE or status not in may:
        raise BadRequest(
            f"Migration {migration_id} state of instance {instance.uuid} is {status}. Cannot {what} while the "
            "migration is in this state."
        )
    return row


def _record(instance: Instance, name: str, row: InstanceAction, asked: ActionRequest) -> None:
    """As what it is: a word to the migration."""
    word = journal.open_action(
        instance, name=name, key="", request_id=asked.request_id, user_id=asked.caller.user_id,
        project_id=instance.project_id, params={"migration": row.pk},
    )  # fmt: skip
    journal.close_action(word, outcome="told the migration")
