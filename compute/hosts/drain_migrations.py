"""Emptying a host before it drains, and returning its servers after. In the targeted cell.

The list of servers is in `compute/hosts/drain_moves.py`. Any conductor advances it, periodically and whenever a move
has ended; conductors keep no state in memory, so each may die at any moment. The state of a DrainMigration and the move
it starts are committed in one transaction, under the lock of the host's service record. So there are never more moves
than allowed, and never a row without its move.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from cells import database_clock
from cells.context import current_alias
from cloud import log
from cloud.caller import ADMIN, Caller, new_request_id
from cloud.errors import ApiError
from compute.contract import bare_metal
from compute.errors import NoValidHost
from compute.hosts import drain_moves
from compute.hosts.drain_moves import COMING, IDLE, UNDER_WAY, State
from compute.migration import cold, moves
from compute.models import DrainMigration, Instance, InstanceAction, Service
from compute.operations import dispatch, journal, registry
from compute.operations.action import ActionParams, ActionRequest, Role
from compute.state import VmState

logger = log.get(__name__)
VERSION = (2, 96)  # microversion of our own requests
PAUSE, LONGEST = 5.0, 300.0  # seconds until the next try: the first pause, doubled each time, and the maximum
LIVE, COLD = frozenset({VmState.ACTIVE, VmState.PAUSED}), frozenset({VmState.STOPPED})
ADVICE: dict[str, str] = {
    VmState.SUSPENDED: "it is suspended: resume it",
    VmState.RESCUED: "it is being rescued: unrescue it",
    VmState.RESIZED: "it was resized: confirm or revert that",
    VmState.ERROR: "it is in ERROR: reset its state, rebuild or delete it",
    VmState.SHELVED: "it is shelved: offload or unshelve it",
    VmState.SOFT_DELETED: "it is soft-deleted: restore it, or delete it for good",
}


def run_all() -> None:
    """Advance the drain migrations of every host that has some under way or waiting."""
    listed = DrainMigration.objects.filter(state__in=(*UNDER_WAY, *COMING)).values_list("host", flat=True)
    wanted = Service.objects.computes(drain_wanted=False, drain_moves__gt=0)
    for host in sorted({*listed, *wanted.values_list("host", flat=True)}):
        run(host)


def run(host: str) -> None:
    """Record the results of a host's ended moves, and begin as many new ones as are allowed."""
    for one in DrainMigration.objects.filter(host=host, state__in=UNDER_WAY):
        _follow(one)
    service = Service.objects.of_host(host)
    if service is None:
        return
    if service.drain_state == "emptying":
        drain_moves.list_servers(host)
        if not _drain(host) and service.is_up:
            _begin_all(host, IDLE, State.MOVING)
    elif service.is_returning and not _is_back(host) and service.is_up and not service.drain_state:
        _begin_all(host, (State.RETURN_WAITING,), State.RETURNING)


# -- beginning moves


def _begin_all(host: str, waiting: tuple[State, ...], going: State) -> None:
    """Begin moves of waiting servers until the limit is reached."""
    rows = list(DrainMigration.objects.filter(_is_due(), host=host, state__in=waiting).order_by("tries", "pk"))
    servers = {s.uuid: s for s in Instance.objects.living(uuid__in=[row.server_id for row in rows])}
    full = False
    for one in rows:
        server = servers.get(one.server_id)
        if server is None or (going == State.RETURNING and server.host != one.moved_to):
            _drop(one, server)
        elif not _stays(one, server) and not full:
            full = _is_full(host) or (_has_room(one, server, going) and not _begin(one, going))


def _drop(one: DrainMigration, server: Instance | None) -> None:
    """Drop a server that is deleted, or that others have moved to another host: it stays there."""
    where = server.host if server else "deleted"
    logger.info("drain_migration.dropped", server=one.server_id, host=one.host, now_on=where)
    _mine(one).delete()


def _stays(one: DrainMigration, server: Instance) -> bool:
    """Whether the server cannot be moved in its state; the row then records why."""
    advice = advice_for(server)
    busy = f"it is {server.task_state or server.vm_state}"
    if not advice and server.task_state is None and server.vm_state in LIVE | COLD:
        return False
    if one.state == State.RETURN_WAITING:
        _write(one, why=advice)
    else:
        _write(one, state=State.BLOCKED if advice else State.WAITING, why=advice or busy)
    return True


def advice_for(server: Instance) -> str:
    """Return why an idle server cannot be moved in its state and what to do about it; empty when it can, or is busy."""
    if bare_metal.is_asked(server.flavor):
        return bare_metal.CANNOT_MOVE
    return "" if server.task_state else ADVICE.get(server.vm_state, "")


def _is_full(host: str) -> bool:
    """Whether the limit of moves is reached. Without the lock: `_begin()` checks again under it."""
    service = Service.objects.of_host(host)
    if service is None:
        return True
    return DrainMigration.objects.filter(host=host, state__in=UNDER_WAY).count() >= service.drain_moves


def _has_room(one: DrainMigration, server: Instance, going: State) -> bool:
    """Whether a host could take the server now. If none can, no action is opened on the server at all."""
    try:
        moves.possible(server, moves.wanted(server, _destination(one, going)))
    except (ApiError, NoValidHost) as none:
        _try_again(one, str(none))
        return False
    return True


def _begin(one: DrainMigration, going: State) -> bool:
    """Open the move and record it in one transaction; False when the limit of moves is reached."""
    with transaction.atomic(using=current_alias()):
        service = Service.objects.select_for_update().computes().get(host=one.host)
        leaving, coming = service.drain_state == "emptying", service.is_returning and not service.drain_state
        wanted = leaving if going == State.MOVING else coming
        moving_now = DrainMigration.objects.filter(host=one.host, state__in=UNDER_WAY).count()
        if not wanted or moving_now >= service.drain_moves:
            return False
        server = Instance.objects.get(uuid=one.server_id)
        if server.host != (one.host if going == State.MOVING else one.moved_to):  # another request moved it
            return True
        comes_up = server.resumes_with_host and server.vm_state in COLD  # read first: submitting the move clears it
        by, request_id = (service.drain_by or "stillwater")[:64], new_request_id()
        caller = Caller(by, project_id=server.project_id, roles=ADMIN)
        try:
            _move(server, caller, request_id, _destination(one, going))
        except ApiError as refused:
            _try_again(one, str(refused))
            return True
        if not _mine(one).update(state=going, request_id=request_id, tries=F("tries") + 1, why="", not_before=None):
            transaction.set_rollback(True, using=current_alias())
            return True
        _mark_for_wakeup(request_id, one.host)
        if comes_up:
            journal.change_params(
                InstanceAction.objects.get(request_id=request_id), cold.ColdMoveParams,
                lambda params: replace(params, comes_up=True),
            )  # fmt: skip
    logger.info("drain_migration.started", server=one.server_id, host=one.host, state=going, request_id=request_id)
    return True


def _move(server: Instance, caller: Caller, request_id: str, to: str) -> None:
    """Live-migrate a running or paused server, cold-migrate a stopped one. Raises ApiError."""
    if server.vm_state in LIVE:
        role, body = Role.LIVE_MIGRATION, {"host": to or None, "block_migration": "auto"}
    else:
        role, body = Role.COLD_MIGRATION, {"host": to or None}
    registry.playing(role).submit(server, ActionRequest(caller, request_id, body, VERSION))


def _destination(one: DrainMigration, going: State) -> str:
    """The host that the server is to go to; empty: any."""
    return "" if going == State.MOVING else one.host


def _mark_for_wakeup(request_id: str, host: str) -> None:
    """Mark an action so that its end wakes a conductor for this host (`journal.close_action`)."""
    action = InstanceAction.objects.get(request_id=request_id)
    journal.change_params(action, ActionParams, lambda params: replace(params, empties=host))


# -- results of moves


def _follow(one: DrainMigration) -> None:
    """Record the result of an ended move. A move under way is left alone."""
    # read before the server: else a move that ends between the two reads would be judged by the old host
    action = InstanceAction.objects.filter(server_id=one.server_id, request_id=one.request_id).first()
    server = Instance.objects.living(uuid=one.server_id).first()
    if server is None:
        _mine(one).delete()
        return
    if action is None or action.finished_at is None:
        return
    coming = one.state == State.RETURNING
    if (server.host == one.host) is not coming:
        _failed(one, action)
    elif server.vm_state == VmState.RESIZED and _is_ours(server):
        _confirm(one, server, action)
    elif coming:
        logger.info("drain_migration.returned", server=one.server_id, host=one.host)
        _mine(one).delete()
    else:
        _has_left(one, server)


def _has_left(one: DrainMigration, server: Instance) -> None:
    """Record that the server lives on another host; if the drain is undone and servers return, it is next to return."""
    service = Service.objects.of_host(one.host)
    state = State.RETURN_WAITING if service is not None and service.is_returning else State.AWAY
    logger.info("drain_migration.moved_away", server=one.server_id, host=one.host, to=server.host)
    _write(one, state=state, moved_to=server.host, tries=0, why="", not_before=None)


def _failed(one: DrainMigration, action: InstanceAction) -> None:
    """The server is where it was before the move: the move failed, or another request moved it back. Try again."""
    _try_again(one, action.outcome if action.message else "")


def _is_ours(server: Instance) -> bool:
    """Whether the move to be confirmed is a drain migration, and not a resize that a user began since."""
    move = cold.awaiting_confirmation(server)
    return move is not None and bool(ActionParams.load(move.params).empties)


def _confirm(one: DrainMigration, server: Instance, action: InstanceAction) -> None:
    """Confirm a cold drain migration: no user asked for it, so no user has to accept it.

    A confirm or revert by the user that came first wins. The source host must take requests for it; if it does not (it
    drains at its deadline), the confirmation waits until it does.
    """
    if server.task_state is not None or not _mine(one).filter(_is_due()).exists():
        return
    source = ActionParams.load(action.params).source
    left = Service.objects.of_host(source)
    if left is None or not left.takes_requests:
        _write(one, why=f"it has moved, and is confirmed when host {source} takes work")
        return
    request_id = new_request_id()
    caller = Caller(action.user_id, project_id=action.project_id, roles=ADMIN)
    with transaction.atomic(using=current_alias()):
        later = database_clock.now(LONGEST)  # the next try if the confirmation fails
        if not _mine(one).update(request_id=request_id, not_before=later):
            return
        try:
            registry.playing(Role.CONFIRM_RESIZE).submit(server, ActionRequest(caller, request_id, None, VERSION))
        except ApiError:  # the user confirmed or reverted first
            transaction.set_rollback(True, using=current_alias())
            return
        _mark_for_wakeup(request_id, one.host)


def _try_again(one: DrainMigration, why: str) -> None:
    """Record a failed try and the time of the next one, with exponential backoff; also when there is no room yet."""
    pause = min(LONGEST, PAUSE * 2 ** min(one.tries, 10))
    coming = one.state in COMING
    state = State.RETURN_WAITING if coming else State.BLOCKED if why else State.WAITING
    if coming and not _returns(one.host):
        state = State.AWAY
    said = f"no room: {why}" if why.startswith("No valid host") else why
    logger.info("drain_migration.postponed", server=one.server_id, host=one.host, reason=said, seconds=pause)
    tries = one.tries + (one.state not in UNDER_WAY)
    _write(one, state=state, why=said[:255], tries=tries, not_before=database_clock.now(pause))


# -- ends of a drain or a return


def _drain(host: str) -> bool:
    """Begin the drain of the host when no server is left to move, or its deadline has passed; whether it drains now."""
    with transaction.atomic(using=current_alias()):
        service = Service.objects.select_for_update().computes().get(host=host)
        if service.drain_state != "emptying":
            return True
        late = service.drain_deadline is not None and service.drain_deadline <= timezone.now()
        if not late and not drain_moves.is_empty(host):
            return False
        Service.objects.filter(pk=service.pk).update(drain_wanted=True, updated_at=timezone.now())
        dispatch.service_changed(host)
    logger.info("drain_migration.finished", host=host, deadline_passed=late)
    return True


def _is_back(host: str) -> bool:
    """Whether no server is left that is to return; then the return is ended."""
    if DrainMigration.objects.filter(host=host, state__in=(*UNDER_WAY, *COMING)).exists():
        return False
    returning = Service.objects.computes(host=host, drain_wanted=False, drain_asked_at__isnull=True)
    returning.update(drain_moves=0)
    return True


# -- helpers


def _returns(host: str) -> bool:
    service = Service.objects.of_host(host)
    return service is not None and service.is_returning


def _is_due() -> Q:
    return database_clock.is_over("not_before", LONGEST)


def _mine(one: DrainMigration) -> Any:
    """The row, if its state and request id are as they were read."""
    return DrainMigration.objects.filter(pk=one.pk, state=one.state, request_id=one.request_id)


def _write(one: DrainMigration, **changes: Any) -> None:
    """Update only if something differs, so that a round in which nothing happens writes nothing."""
    if any(getattr(one, name) != value for name, value in changes.items()):
        _mine(one).update(**changes, updated_at=timezone.now())
