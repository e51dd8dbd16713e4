"""Requests to a live migration that is under way: abort, force complete. Each is recorded in the server's history."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.db.models import Q

from cloud.errors import BadRequest, Conflict, NotFound
from compute.migration import history
from compute.migration.moves import MoveParams
from compute.models import Instance, InstanceAction, Step
from compute.operations import journal, registry, runner
from compute.operations.action import ActionParams, ActionRequest
from compute.state import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRequestParams(ActionParams):
    """The parameters of a request to a migration, in the server's history."""

    migration: int


def find(instance: Instance, migration_id: str) -> InstanceAction:
    """Return one of the server's migrations, of any type. Raises NotFound."""
    number = int(migration_id) if migration_id.isascii() and migration_id.isdigit() and len(migration_id) < 18 else 0
    row = history.migrations(Q(server_id=instance.uuid, pk=number)).first()
    if row is None:
        raise NotFound(f"Migration {migration_id} not found for instance {instance.uuid}")
    return row


def abort(instance: Instance, migration_id: str, asked: ActionRequest, *, queued: bool = True) -> None:
    """Abort a live migration; `queued`: also one that has not begun. Raises Conflict, NotFound, BadRequest.

    A running step reads the flag from the action's params, whether or not its host drains; a queued step is cancelled.
    """
    may = history.MAY_ABORT_QUEUED if queued else history.MAY_ABORT
    row = _under_way(instance, migration_id, may, "abort live migration")
    _record(instance, "live_migration_cancel", row, asked)
    journal.change_params(row, MoveParams, lambda params: replace(params, abort=True))  # the running step reads it
    for step in row.steps.select_related("action").filter(state=Step.State.QUEUED):
        runner.cancel_action(registry.named(row.key), step, "the migration was aborted")


def force(instance: Instance, migration_id: str, asked: ActionRequest) -> None:
    """Complete the migration now, whatever it costs the guest. Raises Conflict, NotFound, BadRequest."""
    row = _under_way(instance, migration_id, history.MAY_FORCE, "force complete")
    _record(instance, "live_migration_force_complete", row, asked)
    journal.change_params(row, MoveParams, lambda params: replace(params, force=True))


def _under_way(instance: Instance, migration_id: str, may: frozenset[str], what: str) -> InstanceAction:
    """The migration, if its status permits the request. Raises the errors with Nova's texts."""
    if instance.task_state != TaskState.MIGRATING:
        raise Conflict(f"Cannot '{what}' instance {instance.uuid} while it is in task_state {instance.task_state}")
    row = find(instance, migration_id)
    status = history.status(row)
    if not history.is_live(row) or status not in may:
        raise BadRequest(
            f"Migration {migration_id} state of instance {instance.uuid} is {status}. Cannot {what} while the "
            "migration is in this state."
        )
    return row


def _record(instance: Instance, name: str, row: InstanceAction, asked: ActionRequest) -> None:
    """Record the request as an action of its own that has ended."""
    word = journal.open_action(
        instance, name=name, key="", request_id=asked.request_id, user_id=asked.caller.user_id,
        project_id=instance.project_id, params=MigrationRequestParams(migration=row.pk),
    )  # fmt: skip
    journal.close_action(word, outcome="told the migration")
