"""Guests that are no server of this host, and servers whose guest is missing. Each new one is logged once.

Nova only warns that its count and the hypervisor's differ; this names them. Two kinds are switched off: guests of
deleted servers (Nova: running_deleted_instance_action), and second guests of servers that live elsewhere. They come
from a late driver call of a worker that had lost its claim (docs/late-driver-calls.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db.models import Case, Exists, OuterRef, Q, When

from cloud import log, metrics
from compute.models import Instance, InstanceAction, Service, Step
from compute.state import VmState
from compute.virt.base import Driver, PowerState, VirtError

logger = log.get(__name__)
SHOWN = 20  # ids in one line
ALIVE = frozenset({PowerState.RUNNING, PowerState.PAUSED})
_said: dict[tuple[str, str], frozenset[str]] = {}  # by host and kind: what the last comparison found


def compare(
    host: str, driver: Driver, servers: Collection[str], idle: Collection[str], guests: Mapping[str, PowerState]
) -> None:
    """Log unknown and missing guests, and switch off guests that should not run here.

    `servers`: the ids of the host's servers on record; `idle`: those without a task. One query if any guest is
    unknown. A guest whose server is elsewhere in the cell is not unknown: it is on its way out, or waits for cleanup;
    otherwise it is switched off.
    """
    unknown = frozenset(guests).difference(servers)
    if unknown:
        known = list(_known(host, unknown))
        unknown -= {uuid for uuid, is_deleted, _ in known if not is_deleted}
        left = [uuid for uuid, _, is_left_over in known if is_left_over and guests[uuid] in ALIVE]
        if not driver.guests_live_elsewhere:  # Ironic lists also the servers of other hosts
            _turn_off(driver, left)
    missing = frozenset(idle).difference(guests)
    metrics.GUESTS_ORPHANED.set(len(unknown))
    metrics.GUESTS_MISSING.set(len(missing))
    if _is_new(host, "strange", unknown) | _is_new(host, "missing", missing):
        logger.warning(
            "power.count_differs", servers=len(servers), guests=len(guests), orphans=sorted(unknown)[:SHOWN],
            missing=sorted(missing)[:SHOWN],
        )  # fmt: skip


def _known(host: str, guests: Collection[str]) -> Collection[tuple[str, bool, bool]]:
    """Return, of the guests on record: id, whether deleted, whether the server surely has no guest on this host.

    That is sure when the server has no open action or step, and is deleted, shelved offloaded, or lives on a host that
    is up. A host that is not up may be this one, under its previous name.
    """
    up = Service.objects.alive().computes(forced_down=False).exclude(host=host)
    gone = Q(deleted=True) | Q(vm_state=VmState.SHELVED_OFFLOADED) | Exists(up.filter(host=OuterRef("host")))
    goes_on = Exists(InstanceAction.objects.filter(server_id=OuterRef("uuid"), finished_at__isnull=True))
    open_steps = Exists(Step.objects.open(server_id=OuterRef("uuid")))
    is_left_over = Case(When(gone & ~goes_on & ~open_steps, then=True), default=False)
    rows = Instance.objects.filter(uuid__in=guests).exclude(host=host, deleted=False)
    return list(rows.annotate(is_left_over=is_left_over).values_list("uuid", "deleted", "is_left_over"))


def _turn_off(driver: Driver, guests: Collection[str]) -> None:
    """Switch the guests off; their disks stay, for inspection."""
    for uuid in guests:
        try:
            driver.power_off(uuid)
        except VirtError as error:
            logger.warning("power.orphan_power_off_failed", server=uuid, error=repr(error))  # the next sync tries again
        else:
            logger.error("power.orphan_powered_off", server=uuid)


def _is_new(host: str, kind: str, found: frozenset[str]) -> bool:
    """Return whether any of these were not found at the last comparison."""
    before, _said[host, kind] = _said.get((host, kind), frozenset()), found
    return bool(found - before)
