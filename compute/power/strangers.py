"""Guests nobody here knows, and servers whose guest is gone. Nothing is done to either: it is said, once.

Nova warns when its count and the hypervisor's differ; this says who.
"""

from __future__ import annotations

from collections.abc import Collection

from cloud import log, metrics
from compute.models import Instance

logger = log.get(__name__)
SHOWN = 20  # ids in one line
_said: dict[tuple[str, str], frozenset[str]] = {}  # by host and kind: as of the last look


def compare(host: str, servers: Collection[str], idle: Collection[str], guests: Collection[str]) -> None:
    """`servers`: of this host, on record; `idle`: those of them nothing goes on with. A query if any guest is unknown.

    A guest whose server is elsewhere in the cell is known: it leaves, or waits to be forgotten.
    """
    unknown = frozenset(guests).difference(servers)
    if unknown:
        unknown -= set(Instance.objects.filter(uuid__in=unknown, deleted=False).values_list("uuid", flat=True))
    missing = frozenset(idle).difference(guests)
    metrics.GUESTS_STRANGE.set(len(unknown))
    metrics.GUESTS_MISSING.set(len(missing))
    if _is_new(host, "strange", unknown) | _is_new(host, "missing", missing):
        logger.warning(
            "power.count_differs", servers=len(servers), guests=len(guests), strange=sorted(unknown)[:SHOWN],
            missing=sorted(missing)[:SHOWN],
        )  # fmt: skip


def _is_new(host: str, kind: str, found: frozenset[str]) -> bool:
    """Whether there are any that were not there at the last look."""
    before, _said[host, kind] = _said.get((host, kind), frozenset()), found
    return bool(found - before)
