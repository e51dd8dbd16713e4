"""Quota usage with sizes read from the cells (STILLWATER_QUOTA_COUNT_FROM=cells), which is Nova's default way.

The global database knows which servers a project has; the cells know their sizes. While a cell is down, the usage of
its projects is unknown, and they may create no servers unless a policy rule allows it ("Handling a down cell").
"""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.db.models import Q

from cells import scatter
from cells.models import Cell, InstanceMapping, RequestSpec
from cloud.caller import Caller
from cloud.errors import Forbidden
from compute.contract import policy
from compute.models import Instance

RULE = "os_compute_api:servers:create:cell_down"
Sizes = Mapping[str, tuple[int, int]]  # by server id: virtual CPUs, MiB


def sizes(caller: Caller) -> Sizes:
    """Return the sizes of the project's servers, read from its cells; empty when only the global database counts.

    Not inside a transaction. Raises Forbidden when a cell of the project is down and no policy rule allows the create.
    """
    if settings.QUOTA_COUNT_FROM != "cells":
        return {}
    living = Q(servers__queued_for_delete=False) | Q(servers__queued_for_delete__isnull=True)
    cells = Cell.objects.filter(living, servers__project_id=caller.project_id).distinct()
    gathered = scatter.gather(cells, lambda _: _sizes(caller.project_id))
    if gathered.down and not policy.allows(caller, RULE):
        names = ", ".join(sorted(cell.name for cell in cells if cell.id in gathered.down))
        raise Forbidden(
            f"Project {caller.project_id} has servers in a cell that does not answer now ({names}), so what it holds "
            "cannot be counted. Try again when the cell is back, or ask an administrator."
        )
    return {server_id: size for found in gathered.values() for server_id, size in found.items()}


def added(project_id: str, known: Sizes) -> tuple[int, int, int]:
    """Return the number of servers, virtual CPUs and MiB; `known` sizes take precedence over request specs.

    In the transaction that holds the project's quota lock.
    """
    living = InstanceMapping.objects.filter(Q(queued_for_delete=False) | Q(queued_for_delete__isnull=True))
    ids = living.filter(project_id=project_id).values("server_id")
    asked_for = RequestSpec.objects.filter(project_id=project_id, server_id__in=ids)
    rows = [known.get(server_id, size) for server_id, *size in asked_for.values_list("pk", "vcpus", "memory_mb")]
    return len(rows), sum(vcpus for vcpus, _ in rows), sum(memory_mb for _, memory_mb in rows)


def _sizes(project_id: str) -> dict[str, tuple[int, int]]:
    rows = Instance.objects.living(project_id=project_id)
    return {uuid: (vcpus, memory_mb) for uuid, vcpus, memory_mb in rows.values_list("uuid", "vcpus", "memory_mb")}
