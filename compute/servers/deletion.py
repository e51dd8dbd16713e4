"""Deletion of a server: which action does it, the guest's grace period, and when the quota stops counting it.

The quota does not count a server from the moment its delete is requested: `queued_for_delete` of its mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.db import transaction

from cells.context import current_alias
from cells.models import InstanceMapping
from compute.models import Instance, Step
from compute.operations import journal, registry
from compute.operations.action import AnyAction, Role
from compute.operations.params import ActionParams
from compute.shutdown import grace, options
from compute.state import TaskState, VmState

GOING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


def action_for(instance: Instance) -> AnyAction:
    """Return the action for a DELETE. Only a server that has run and is on a host is soft-deleted."""
    keeps = settings.RECLAIM_INSTANCE_INTERVAL > 0 and instance.launched_at is not None and instance.host
    return registry.playing(Role.SOFT_DELETE if keeps else Role.DELETE)


def keys() -> list[str]:
    """Return the keys of the actions that delete a server."""
    return registry.keys(lambda action: action.role in (Role.DELETE, Role.SOFT_DELETE))


@contextmanager
def marked_for_delete(server_id: str) -> Iterator[None]:
    """Mark the server so that the quota no longer counts it, around the record of its delete.

    Marked before: a process that dies before the delete is recorded leaves the mark on a living server, and the
    scheduler removes it (`periodic/stale_delete_flags.py`). Marked again after: the scheduler may have removed it just
    now.
    """
    mapped = InstanceMapping.objects.filter(pk=server_id)
    mapped.update(queued_for_delete=True)
    yield
    mapped.update(queued_for_delete=True)


def is_ended(instance: Instance) -> bool:
    """Whether the server is deleted, soft-deleted or about to be: then the quota does not count it."""
    return instance.deleted or instance.vm_state == VmState.SOFT_DELETED or instance.task_state in GOING


def shutdown_timeout(instance: Instance, words: Any) -> int | None:
    """Return the requested grace period of a deleted server's guest: 0, as in Nova, unless one is set.

    None: the server's own grace period holds. The request (including SOFT) takes precedence over that.
    """
    if options.has_options(words):
        return options.asked(words)
    return None if grace.requested_timeout(instance) is not None else 0


def shorten_wait(instance: Instance, words: Any) -> None:
    """End the grace period of a delete that is under way when the new request says HARD; else change nothing.

    The step is locked while the action changes: a step that is about to wait reads it again then (`runner._wait_step`).
    """
    if options.asked(words) != 0:
        return
    with transaction.atomic(using=current_alias()):
        going = Step.objects.select_for_update(of=("self",)).select_related("action")
        for step in going.open(server_id=instance.uuid, action__key__in=keys()):
            journal.change_params(step.action, ActionParams, lambda params: replace(params, shutdown_timeout=0))
            journal.resume_step(step)
