"""A server that is deleted: which action does it, what it says of the guest's time, and when it counts no more.

A deleted server is not counted by the quota from the moment the delete is asked for: the flag of its mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import transaction

from cells.context import current_alias
from cells.models import InstanceMapping
from compute.models import Instance, Step
from compute.operations import journal
from compute.shutdown import grace, options
from compute.state import TaskState, VmState

KEYS = ("Delete", "SoftDelete")
GOING = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


def key_for(instance: Instance) -> str:
    """Which action a DELETE asks for: only what has run, and is on a host, is kept for a while."""
    keeps = settings.RECLAIM_INSTANCE_INTERVAL > 0 and instance.launched_at is not None and instance.host
    return "SoftDelete" if keeps else "Delete"


@contextmanager
def marked_for_delete(server_id: str) -> Iterator[None]:
    """The quota does not count the server any more.

    Said first: whoever dies before the delete is recorded leaves a flag on a server that lives, and the scheduler
    takes that back. Said again afterwards: it may have done so just now.
    """
    mapped = InstanceMapping.objects.filter(pk=server_id)
    mapped.update(queued_for_delete=True)
    yield
    mapped.update(queued_for_delete=True)


def is_ended(instance: Instance) -> bool:
    """Whether it is gone, soft-deleted, or about to be: then the quota does not count it."""
    return instance.deleted or instance.vm_state == VmState.SOFT_DELETED or instance.task_state in GOING


def shutdown_options(instance: Instance, words: Any) -> dict[str, Any]:
    """How long the guest of a server that is deleted has, for the params: none, as with Nova, unless somebody says so.

    The request's word counts more than the server's own; SOFT is a word, too.
    """
    if options.has_options(words):
        return options.asked(words)
    return {} if grace.requested_timeout(instance) is not None else {grace.ASKED: 0}


def shorten_wait(instance: Instance, words: Any) -> None:
    """HARD ends the wait of the delete that goes on; any other word finds it going on, and changes nothing.

    The step is held while the action is changed: one that is about to wait looks again after it (`running._park`).
    """
    if options.asked(words).get(grace.ASKED) != 0:
        return
    with transaction.atomic(using=current_alias()):
        going = Step.objects.select_for_update(of=("self",)).select_related("action")
        for step in going.filter(server_id=instance.uuid, action__key__in=KEYS, state__in=journal.OPEN):
            journal.change_params(step.action, **{grace.ASKED: 0})
            journal.resume_step(step)
