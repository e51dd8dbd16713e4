"""The server actions. Every module in `compute/actions` is found automatically; there is no list to maintain."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from compute.models import Instance, Step
from compute.operations import dispatch, journal, versions
from compute.operations.action import AnyAction, On, Role, ServerAction, StepSpec, compensate, fault_of

ACTIONS = "compute.actions"  # a higher layer: named here, not imported


@cache
def every() -> dict[str, AnyAction]:
    """Return all actions by class name (the journal's `key`). Raises ValueError when two share an API key."""
    found: dict[str, AnyAction] = {}
    for module in pkgutil.iter_modules(importlib.import_module(ACTIONS).__path__):
        loaded = importlib.import_module(f"{ACTIONS}.{module.name}")
        for thing in vars(loaded).values():
            if isinstance(thing, type) and issubclass(thing, ServerAction) and thing.__module__ == loaded.__name__:
                found[thing.__name__] = thing()
    keys = [(a.key, a.since) for a in found.values() if a.key]
    if len(keys) != len(set(keys)):
        raise ValueError("two server actions share an API key")
    return found


def named(name: str) -> AnyAction:
    """Return the action of a journal row, by its `key`. Raises KeyError."""
    return every()[name]


def known(step: Step) -> tuple[AnyAction, StepSpec] | None:
    """Return the action and the declaration of a step; None when only a newer version of the service knows it."""
    action = every().get(step.action.key)
    spec = action.find(step.name) if action is not None else None
    return (action, spec) if action and spec and spec.known_since <= versions.current() else None


def playing(role: Role) -> AnyAction:
    """Return the action that has a role."""
    return named(key_of(role))


def key_of(role: Role) -> str:
    """Return the journal's key of the action that has a role."""
    (key,) = keys(lambda action: action.role is role)
    return key


def keys(fits: Callable[[AnyAction], bool]) -> list[str]:
    """Return the journal's keys of the actions that fit."""
    return [key for key, action in every().items() if fits(action)]


def long_steps() -> tuple[set[str], set[str]]:
    """Return the keys of actions that have a long step, and the names of those steps."""
    found = [(key, spec.name) for key, action in every().items() for spec in action.steps if spec.long]
    return {key for key, _ in found}, {name for _, name in found}


def keyed(key: str, microversion: tuple[int, int]) -> AnyAction | None:
    """Return the action for a key of `POST /servers/{id}/action` at a microversion; None when there is none."""
    for action in every().values():
        if key and action.key == key and action.since <= microversion <= action.until:
            return action
    return None


def cancel_open(instance: Instance, why: str) -> None:
    """Cancel every queued step of a server, and compensate what their actions did.

    Runs in the transaction that takes the server from them. Compensations, and steps behind a point of no return,
    stay.
    """
    queued = Step.objects.select_related("action").filter(server_id=instance.uuid, state=Step.State.QUEUED)
    for step in queued:
        action = every().get(step.action.key)
        if action is not None and action.must_run(step.name):
            continue
        if not journal.cancel(step, why):
            continue
        if action is not None and action.clean_up is None:
            journal.remember_fault(step.action, fault_of(InterruptedError(why)))
        if action is None or not compensate(action, step.action, instance):
            journal.close_action(step.action, outcome=why, failed=True)


def follow(instance: Instance, left: str) -> None:
    """Move queued steps from the host that a server left to its new host, in the transaction that records the move."""
    waiting = Step.objects.select_related("action").filter(
        server_id=instance.uuid, host=left, state=Step.State.QUEUED
    )
    for step in waiting:
        action = every().get(step.action.key)
        spec = action.find(step.name) if action is not None else None
        if spec is not None and spec.on is On.HOST:
            step.host = instance.host
            Step.objects.filter(pk=step.pk, state=Step.State.QUEUED).update(host=instance.host)
            dispatch.step(step)
