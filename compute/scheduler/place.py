"""A build request becomes a server in a cell: lease, pick, claim, record. Safe to run twice or to die in.

Two databases are involved, so the order matters: the global side first names the cell it is going to
use, then the cell gets claim, row and first step in one transaction, then the request is removed. Whoever
finds a request with a cell named looks there first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from cells import scatter
from cells.context import target_cell
from cells.models import CELL0, BuildRequest, Cell, InstanceMapping, RequestSpec
from cloud import log
from cloud.caller import Caller
from compute import claims, dispatch, journal
from compute.actions import create
from compute.actions.delete import Delete
from compute.errors import NoValidHost
from compute.lifecycle import Asked, fault_of
from compute.models import Instance
from compute.scheduler import pick
from compute.state import TaskState, VmState

logger = log.get(__name__)
LEASE = timedelta(seconds=30)


class LeaseLost(RuntimeError):
    """Another scheduler holds the request now; this one wrote nothing."""


def place(server_id: str) -> bool:
    """Carry one build request to its end; False when it is somebody else's, gone, or has to wait."""
    request = _lease(server_id)
    if request is None:
        return False
    log.bind(request_id=request.request_id, server=server_id)
    mapping = InstanceMapping.objects.select_related("cell").filter(pk=server_id).first()
    spec = RequestSpec.objects.filter(pk=server_id).first()
    if mapping is None or spec is None:
        request.delete()
        return False
    if mapping.cell is not None and not _arrived_or_free(mapping, mapping.cell):
        return False  # its cell is down, and the server may be in it: the relay comes back
    if mapping.cell is None and not request.delete_requested:
        _find_a_place(request, mapping, spec)
    return _conclude(request, mapping)


def relay() -> int:
    """Send again every build request whose message or scheduler was lost; how many went out."""
    now = timezone.now()
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=now)
    late = Q(sent_at__isnull=True) | Q(sent_at__lt=now - timedelta(seconds=settings.RESEND_AFTER))
    sent = 0
    for request in BuildRequest.objects.filter(free & late).order_by("created_at")[:500]:
        if dispatch.resend_due(request.sent_at, request.sends):
            BuildRequest.objects.filter(pk=request.pk).update(sent_at=now, sends=F("sends") + 1)
            dispatch.schedule(request.server_id)
            sent += 1
    return sent


def _lease(server_id: str) -> BuildRequest | None:
    """Hold the request for a while; the holder's name is new every time, so nobody can be mistaken."""
    now, holder = timezone.now(), str(uuid4())
    free = Q(lease_until__isnull=True) | Q(lease_until__lt=now)
    won = BuildRequest.objects.filter(free, pk=server_id).update(lease_holder=holder, lease_until=now + LEASE)
    return BuildRequest.objects.filter(pk=server_id, lease_holder=holder).first() if won else None


def _renew(request: BuildRequest) -> None:
    """Last thing before the cell's commit: whoever lost the lease must not write a second server."""
    mine = BuildRequest.objects.filter(pk=request.pk, lease_holder=request.lease_holder)
    if not mine.update(lease_until=timezone.now() + LEASE):
        raise LeaseLost(request.server_id)


def _arrived_or_free(mapping: InstanceMapping, cell: Cell) -> bool:
    """Look in the cell an earlier try named. There: fine. Surely not there: the name is taken back."""

    def there(_: Cell) -> bool:
        return Instance.objects.filter(uuid=mapping.server_id).exists()

    found = scatter.one(cell, there)
    if isinstance(found, scatter.Down):
        return False
    if not found:
        InstanceMapping.objects.filter(pk=mapping.pk).update(cell=None)
        mapping.cell = None
    return True


def _find_a_place(request: BuildRequest, mapping: InstanceMapping, spec: RequestSpec) -> None:
    """Try the best hosts of all cells that answer; no valid host ends in cell0."""
    wanted = pick.Wanted(
        spec.server_id, spec.vcpus, spec.memory_mb, spec.disk_gb, spec.availability_zone, spec.host,
        spec.hypervisor_hostname,
    )  # fmt: skip
    cells = {cell.id: cell for cell in Cell.objects.filter(disabled=False).exclude(pk=CELL0)}
    gathered = scatter.gather(cells.values(), lambda cell: pick.read_hosts(cell.id))
    hosts = [host for found in gathered.values() for host in found]
    try:
        for host in pick.rank(wanted, hosts):
            if _build_in(cells[host.cell_id], host, wanted, request, mapping):
                return
        raise NoValidHost("No valid host was found. Every host that fitted was taken meanwhile.")
    except NoValidHost as none:
        logger.warning("schedule.no_valid_host", reason=str(none), cells_down=sorted(gathered.down))
        _bury_in_cell0(request, mapping, none)


def _build_in(cell: Cell, host: pick.HostState, wanted: pick.Wanted, request: BuildRequest,
              mapping: InstanceMapping) -> bool:  # fmt: skip
    """Name the cell, then claim, row and first step in one transaction there; False when the room is gone."""
    InstanceMapping.objects.filter(pk=mapping.pk).update(cell=cell)
    with target_cell(cell) as alias:
        try:
            with transaction.atomic(using=alias):
                if not claims.claim(wanted.server_id, host.node, wanted.vcpus, wanted.memory_mb, wanted.disk_gb):
                    InstanceMapping.objects.filter(pk=mapping.pk).update(cell=None)
                    return False
                instance = _write_row(
                    request, host=host.host, node=host.node.hypervisor_hostname,
                    availability_zone=host.zone, task_state=TaskState.SPAWNING,
                )  # fmt: skip
                params = {**request.action, "availability_zone": wanted.availability_zone}
                create.record(instance, request.request_id, params)
                _renew(request)
        except IntegrityError:
            pass  # an earlier try wrote the row: it is there, which is what we want
    mapping.cell = cell
    logger.info("schedule.placed", host=host.host, cell=cell.name)
    return True


def _bury_in_cell0(request: BuildRequest, mapping: InstanceMapping, reason: NoValidHost) -> None:
    """A server nobody can take is an ERROR with a fault, in cell0."""
    cell0 = Cell.objects.get(pk=CELL0)
    InstanceMapping.objects.filter(pk=mapping.pk).update(cell=cell0)
    with target_cell(cell0) as alias, transaction.atomic(using=alias):
        if Instance.objects.filter(uuid=mapping.server_id).exists():
            return
        instance = _write_row(request, vm_state=VmState.ERROR, task_state=None, fault=fault_of(reason))
        action = journal.open_action(
            instance, name="create", key="Create", request_id=request.request_id,
            user_id=instance.user_id, project_id=instance.project_id, params={},
        )  # fmt: skip
        journal.close_action(action, outcome=str(reason), failed=True)
    mapping.cell = cell0


def _write_row(request: BuildRequest, **columns: Any) -> Instance:
    """The server's row, as it was asked for, where it was placed."""
    asked = dict(request.instance)
    asked["created_at"] = parse_datetime(asked["created_at"])
    return Instance.objects.create(**{**asked, **columns}, updated_at=timezone.now())


def _conclude(request: BuildRequest, mapping: InstanceMapping) -> bool:
    """Remove the request; a delete that came meanwhile is carried out now."""
    with transaction.atomic(using="default"):
        mine = BuildRequest.objects.filter(pk=request.pk, lease_holder=request.lease_holder)
        if mine.filter(delete_requested=False).delete()[0]:
            return True
        if not mine.exists():
            return False
    if mapping.cell is not None:
        with target_cell(mapping.cell):
            instance = Instance.objects.filter(uuid=mapping.server_id).first()
            if instance is not None:
                caller = Caller(request.user_id, project_id=request.project_id)
                Delete().submit(instance, Asked(caller, request.request_id))
    forget(request.server_id)
    return True


def forget(server_id: str) -> None:
    """Nothing of a request is left, unless its server is in a cell (then its mapping stays as history)."""
    with transaction.atomic(using="default"):
        BuildRequest.objects.filter(pk=server_id).delete()
        if InstanceMapping.objects.filter(pk=server_id, cell__isnull=True).delete()[0]:
            RequestSpec.objects.filter(pk=server_id).delete()
