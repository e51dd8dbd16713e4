"""A build request becomes a server in a cell: lease, pick, claim, record. Idempotent; the process may die anywhere.

Two databases are involved, so the order matters. First the mapping in the global database names the cell; then the cell
gets allocation, row and first step in one transaction; then the request is removed. A scheduler that finds a request
whose mapping names a cell looks in that cell first.
"""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from cells import cell_records, scatter
from cells.context import current_alias
from cells.models import CELL0, BuildRequest, Cell, InstanceMapping, RequestSpec
from cloud import failpoints, log
from cloud.caller import Caller
from compute.actions import create
from compute.actions.delete import Delete
from compute.builds import leases
from compute.errors import NoValidHost
from compute.models import Instance
from compute.operations import journal, versions
from compute.operations.action import ActionRequest, fault_of
from compute.placement import aggregates, server_groups
from compute.scheduler import requirements, select
from compute.scheduler.requirements import Requirements
from compute.state import TaskState, VmState

logger = log.get(__name__)
NOT_ASKED = "Hosts whose cell does not answer now could not be asked."


class WaitingForCell(RuntimeError):
    """The cells that the request needs are down. The request stays until one of them is back."""


def place(server_id: str) -> bool:
    """Carry one build request to its end; False when another scheduler holds it, it is gone, or it has to wait."""
    request = leases.take(server_id)
    if request is None:
        return False
    log.bind(request_id=request.request_id, server=server_id)
    failpoints.reached("place.leased")
    try:
        return _carry(request)
    except leases.LeaseLost:
        logger.warning("schedule.lease_lost")
    except (WaitingForCell, *scatter.DATABASE_AWAY) as why:
        logger.warning("schedule.postponed", reason=str(why) or type(why).__name__)
        leases.release(request)
    return False


def _carry(request: BuildRequest) -> bool:
    server_id = request.server_id
    mapping = InstanceMapping.objects.select_related("cell").filter(pk=server_id).first()
    spec = RequestSpec.objects.filter(pk=server_id).first()
    if mapping is None or spec is None:
        request.delete()
        return False
    if mapping.cell is not None:
        _arrived_or_free(request, mapping, mapping.cell)
    if mapping.cell is None and not request.delete_requested:
        _find_a_place(request, mapping, spec)
    return _conclude(request, mapping)


def _name_cell(request: BuildRequest, mapping: InstanceMapping, cell: Cell | None) -> None:
    """Name the cell to be used, in the mapping. Raises LeaseLost."""
    with transaction.atomic(using="default"):
        leases.renew(request)
        InstanceMapping.objects.filter(pk=mapping.pk).update(cell=cell)
    mapping.cell = cell


def _arrived_or_free(request: BuildRequest, mapping: InstanceMapping, cell: Cell) -> None:
    """Look in the cell that an earlier try named; if the server is certainly not there, un-name the cell.

    Raises WaitingForCell when the cell is down.
    """
    found = scatter.ask_one(cell, lambda _: _is_there(request))
    if isinstance(found, scatter.CellFailure):
        raise WaitingForCell(f"it may be in {cell.name}, which is down: {found.reason}")
    if not found:
        _name_cell(request, mapping, None)


def _is_there(request: BuildRequest) -> bool:
    """Whether the server's row is in the targeted cell, for certain.

    Another scheduler may have written the row without having committed: inserting it again waits for that transaction.
    """
    if Instance.objects.filter(uuid=request.server_id).exists():
        return True
    alias = current_alias()
    try:
        with transaction.atomic(using=alias):
            _write_row(request)
            transaction.set_rollback(True, using=alias)
    except IntegrityError:
        return True
    return False


def _find_a_place(request: BuildRequest, mapping: InstanceMapping, spec: RequestSpec) -> None:
    """Try the best hosts of all cells that answer. No valid host: the server is recorded in cell0.

    Raises WaitingForCell when there are cells and none answers.
    """
    cells = {cell.id: cell for cell in cell_records.every() if not (cell.disabled or cell.is_cell0)}
    version = versions.needed_by_host(create.Create.steps)
    answering: set[str] = set()

    def look() -> tuple[Requirements, list[select.HostState]]:
        asked, known = requirements.of_request(request, spec, version), aggregates.by_host()
        gathered = scatter.gather(cells.values(), lambda cell: select.read_hosts(cell.id, asked, known))
        answering.clear()
        answering.update(gathered.answers)
        return asked, [host for found in gathered.values() for host in found]

    try:
        for asked, host in select.in_turn(look):
            at_home = server_groups.take_home(asked.group, spec.server_id, host.host, lambda cell: cell.id in answering)
            if at_home and _build_in(cells[host.cell_id], host, asked, request, mapping):
                return
    except NoValidHost as none:
        down = sorted(cells.keys() - answering)
        if down and not answering:
            raise WaitingForCell("no cell answers") from none
        logger.warning("schedule.no_valid_host", reason=str(none), cells_down=down)
        _record_in_cell0(request, mapping, NoValidHost(f"{none} {NOT_ASKED}") if down else none)


def _build_in(cell: Cell, host: select.HostState, asked: Requirements, request: BuildRequest,
              mapping: InstanceMapping) -> bool:  # fmt: skip
    """Name the cell, then write allocation, row and first step in one transaction; False when the room is gone."""
    _name_cell(request, mapping, cell)
    failpoints.reached("place.named")
    with scatter.target_for_write(cell) as alias:
        try:
            with transaction.atomic(using=alias):
                if not select.claim(asked, host.node):
                    return False  # the next host's cell is named instead
                instance = _write_row(
                    request, host=host.host, node=host.node.hypervisor_hostname,
                    availability_zone=host.zone, task_state=TaskState.SPAWNING,
                )  # fmt: skip
                params = create.CreateParams.load(request.action | asked.destination())
                create.Create().record(instance, _asked(instance, request), params)
                leases.renew(request)
        except IntegrityError:
            pass  # an earlier try wrote the row
    failpoints.reached("place.recorded")
    logger.info("schedule.placed", host=host.host, cell=cell.name)
    return True


def _record_in_cell0(request: BuildRequest, mapping: InstanceMapping, reason: NoValidHost) -> None:
    """Record the server in cell0, in ERROR with a fault."""
    cell0 = Cell.objects.get(pk=CELL0)
    _name_cell(request, mapping, cell0)
    with scatter.target_for_write(cell0) as alias, transaction.atomic(using=alias):
        if Instance.objects.filter(uuid=mapping.server_id).exists():
            return
        instance = _write_row(request, vm_state=VmState.ERROR, task_state=None, fault=fault_of(reason))
        action = create.Create().open_row(instance, _asked(instance, request), create.CreateParams())
        journal.close_action(action, outcome=str(reason), failed=True)
        leases.renew(request)


def _asked(instance: Instance, request: BuildRequest) -> ActionRequest:
    return ActionRequest.of_cloud(instance, user_id=instance.user_id, request_id=request.request_id)


def _write_row(request: BuildRequest, **columns: Any) -> Instance:
    """Insert the server's row: the requested columns and the given ones."""
    asked = dict(request.instance)
    asked["created_at"] = parse_datetime(asked["created_at"])
    return Instance.objects.create(**{**asked, **columns}, updated_at=timezone.now())


def _conclude(request: BuildRequest, mapping: InstanceMapping) -> bool:
    """Remove the request; carry out a delete that was requested meanwhile."""
    with transaction.atomic(using="default"):
        mine = BuildRequest.objects.filter(pk=request.pk, lease_holder=request.lease_holder)
        if mine.filter(delete_requested=False).delete()[0]:
            return True
        if not mine.exists():
            return False
    if mapping.cell is not None:
        with scatter.target_for_write(mapping.cell):
            instance = Instance.objects.filter(uuid=mapping.server_id).first()
            if instance is not None:
                caller = Caller(request.user_id, project_id=request.project_id)
                Delete().submit(instance, ActionRequest(caller, request.request_id))
    leases.delete_requests_of(request.server_id)
    return True
