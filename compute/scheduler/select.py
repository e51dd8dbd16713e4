"""Choice of a host: filters, weighers, and a claim that decides all races."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from django.db import transaction

from cells.context import current_alias
from compute.errors import NoValidHost
from compute.models import ComputeNode
from compute.placement import claims, server_groups
from compute.scheduler import filters, weighers
from compute.scheduler.host_state import HostState
from compute.scheduler.host_state import read as read_hosts
from compute.scheduler.requirements import Requirements

__all__ = ["HostState", "Look", "Requirements", "claim", "claim_best", "in_turn", "rank", "read_hosts"]
CANDIDATES = 50  # best hosts tried before all are read again
ROUNDS = 3  # reads before giving up
Look = Callable[[], tuple[Requirements, list[HostState]]]  # reads the requirements and all hosts


def rank(wanted: Requirements, hosts: Iterable[HostState], avoid: frozenset[str] = frozenset()) -> list[HostState]:
    """Return the hosts that pass every filter, the best first. Raises NoValidHost naming the filter that left none.

    `avoid`: names of hosts or of single nodes. At most CANDIDATES.
    """
    every = list(hosts)
    if not any(host.names.isdisjoint(avoid) for host in every):
        raise NoValidHost("No valid host was found. There are no hosts left to try.")
    left, stopped_by = filters.passing(wanted, every, avoid)
    if not left:
        raise NoValidHost(f"No valid host was found. No host passed the filter for: {stopped_by}.")
    return weighers.best_first(wanted, left)[:CANDIDATES]


def in_turn(look: Look, avoid: frozenset[str] = frozenset()) -> Iterator[tuple[Requirements, HostState]]:
    """Yield the requirements and each host to try, the best first; read anew when all were claimed meanwhile.

    Ends by raising NoValidHost, after ROUNDS reads.
    """
    for _ in range(ROUNDS):
        wanted, hosts = look()
        for host in rank(wanted, hosts, avoid):
            yield wanted, host
    raise NoValidHost(
        "No valid host was found. Every host that fitted was taken meanwhile, or the server group is at home elsewhere."
    )


def claim(wanted: Requirements, node: ComputeNode) -> bool:
    """Claim room for a server on a node of the targeted cell. In the caller's transaction."""
    return claims.claim(wanted.server_id, node, wanted.vcpus, wanted.memory_mb, wanted.disk_gb, wanted.group)


def claim_best(
    look: Look,
    avoid: frozenset[str] = frozenset(),
    then: Callable[[HostState], None] = lambda _: None,
    begin: Callable[[], AbstractContextManager[None]] | None = None,
) -> HostState:
    """Claim room on the best host of the targeted cell, and call `then` in the same transaction.

    Raises NoValidHost. Not inside a transaction: each host is tried in one of its own, opened with `begin` (a step's
    fence).
    """
    alias = current_alias()
    begin = begin or partial(transaction.atomic, using=alias)
    for wanted, host in in_turn(look, avoid):
        if not server_groups.take_home(wanted.group, wanted.server_id, host.host, lambda cell: cell.alias == alias):
            continue
        with begin():
            if claim(wanted, host.node):
                then(host)
                return host
    raise AssertionError("in_turn() ends by raising")
