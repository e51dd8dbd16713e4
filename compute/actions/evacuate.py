"""Build a server anew on another host, because its own host is fenced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from cloud.errors import BadRequest, Conflict, NotFound
from cloud.images import tickets
from compute import state
from compute.actions.bases import rebuild
from compute.contract import bare_metal, validation
from compute.contract.microversion import Version
from compute.errors import StateConflict
from compute.hosts import fenced
from compute.migration import moves
from compute.models import Allocation, Instance, Service, Step
from compute.models.host import COMPUTE
from compute.operations import registry
from compute.operations.action import (
    OPS,
    ActionRequest,
    ActionResponse,
    On,
    Role,
    ServerAction,
    StepContext,
    StepSpec,
    fault_of,
)
from compute.placement import claims
from compute.servers import image_transfer
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

HOST = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*\Z"}
STAY_OFF_SINCE = (2, 95)
NOT_FROM = frozenset({TaskState.DELETING, TaskState.SOFT_DELETING})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvacuateParams(moves.MoveParams):
    """The parameters of an evacuation."""

    on: bool = True  # whether the guest is powered on
    image_ticket: str = ""  # permits the download
    follows: int | None = None  # id of the step of an earlier request that waits, and runs after the evacuation
    task: TaskState | None = None  # the task_state of that request
    kept: bool | None = None  # whether the hosts share the disk; None: the step has not looked yet
    cleaned: bool = False  # whether the old host has removed its guest


class Evacuate(ServerAction[EvacuateParams]):
    """Active, stopped or in error -> active or stopped, elsewhere. Refused while the old host may run the guest.

    The action RemoveStaleGuest removes what the old host has of the guest, when that host is back.
    """

    key = name = "evacuate"
    policy = "os_compute_api:os-evacuate"
    role = Role.EVACUATION
    respects_lock = False
    over_any_task = True
    builds = True
    unsupported_on_bare_metal = bare_metal.CANNOT_MOVE
    move = rebuild.move(on=True)
    steps = (
        StepSpec("pick", "rebuild_server", On.CONDUCTOR, undo="release_claim", status="accepted"),
        StepSpec(
            "build", "compute_rebuild_instance", On.DEST, OPS, undo="cleanup_destination", no_return=True, long=True
        ),
    )

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema: onSharedStorage until 2.13, force from 2.29 to 2.67."""
        fields: dict[str, Any] = {"host": HOST, "adminPass": {"type": "string"}}
        if version < (2, 14):
            fields["onSharedStorage"] = validation.BOOLEAN
        if (2, 29) <= version < (2, 68):
            fields["force"] = validation.BOOLEAN
        required = ["onSharedStorage"] if version < (2, 14) else []
        return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}

    def prepare(self, instance: Instance, asked: ActionRequest) -> EvacuateParams:
        """Check that the host is fenced and that a named destination will do.

        Raises BadRequest, Conflict, NotFound.
        """
        host = asked.body.get("host", "")
        forced = validation.is_true(asked.body.get("force", False))
        if asked.microversion >= (2, 29) and forced and not host:
            raise BadRequest("Can't force to a non-provided destination")
        must_be_gone(instance.host)
        if host:
            _must_accept_server(instance, host)
        on = asked.microversion < STAY_OFF_SINCE and instance.vm_state != VmState.STOPPED
        return moves.begun_at(instance, EvacuateParams(
            host=host, forced=bool(host) and forced, on=on, image_ticket=tickets.issue(instance.image_id, "read"),
        ))  # fmt: skip

    def check_obstacles(self, instance: Instance) -> None:
        """Raise BadRequest or Conflict while the server's host may run the guest."""
        must_be_gone(instance.host)

    def move_for(self, params: EvacuateParams) -> Move:
        """Return the move: the server ends off if it was off, and always since 2.95."""
        return rebuild.move(on=params.on)

    def begin(self, instance: Instance, asked: ActionRequest, params: EvacuateParams) -> EvacuateParams:
        """Take the server, and end steps that cannot go on because their host is fenced. Raises StateConflict."""
        follows = fenced.abort_steps(instance)
        task = frozenset({TaskState(instance.task_state)} if instance.task_state else ())
        state.begin(instance, Move(rebuild.FROM, TaskState.REBUILDING, over=task - NOT_FROM))
        return replace(params, task=_task_of(follows), follows=follows.pk if follows is not None else None)

    def answer(self, params: EvacuateParams, asked: ActionRequest) -> ActionResponse:
        """Return an empty password before 2.14, where clients expect the key; there is no password."""
        return ActionResponse(200, {"adminPass": ""} if asked.microversion < (2, 14) else None)

    # -- the steps

    def pick(self, run: StepContext[EvacuateParams]) -> None:
        """Pick another host and claim room on it."""
        forced = run.params.forced
        moves.claim(run, moves.wanted(run.instance, run.params.host, forced=forced), forced=forced)

    def build(self, run: StepContext[EvacuateParams]) -> None:
        """Build the guest from its disk where hosts share it, else from its image.

        In the second case remains of an earlier stay on this host are destroyed first.
        """
        instance, driver = run.instance, run.hypervisor
        if run.params.kept is None:
            kept = driver.shares_disk(instance.uuid)
            if not kept:
                driver.destroy(instance.uuid)
            run.change_params(lambda params: replace(params, kept=kept))
        fetch = image_transfer.source(instance.image_id, run.params.image_ticket)
        run.hypervisor.spawn(instance.as_guest(), fetch, on=run.params.on)
        run.note("with the disk it had" if run.params.kept else "from its image")

    def record_step(self, run: StepContext[EvacuateParams], power_state: PowerState | None) -> None:
        """Record the new host after `build`, and schedule the cleanup of the old one.

        A server that was deleted meanwhile is removed from the new host, too.
        """
        if not run.runs(self.build):
            return
        moves.arrived(run)
        if run.instance.deleted:
            fenced.schedule_cleanup(run.instance, run.params.destination)
            claims.release(run.instance.uuid)
            return
        registry.follow(run.instance, run.params.source)
        fenced.schedule_cleanup(run.instance, run.params.source, run.action)
        self._leave_others(run)

    def _leave_others(self, run: StepContext[EvacuateParams]) -> None:
        """Release the allocations on all other nodes and schedule cleanups on their hosts.

        A migration that ended when its hosts were fenced may have left the guest on either of them.
        """
        held = Allocation.objects.filter(server_id=run.instance.uuid).select_related("node")
        for node in [allocation.node for allocation in held]:
            if node.host != run.params.destination:
                claims.release(run.instance.uuid, node.hypervisor_hostname)
                fenced.schedule_cleanup(run.instance, node.host)

    def complete(self, run: StepContext[EvacuateParams], power_state: PowerState | None) -> None:
        """Finish the move. An action that took the server meanwhile finds it on its new host."""
        with suppress(StateConflict):
            state.finish(run.instance, _final_move(run), power_state, launched_at=timezone.now(), fault=None)

    # -- compensation

    def cleanup_destination(self, run: StepContext[EvacuateParams]) -> None:
        """Remove the guest from the destination; a disk that hosts share stays."""
        if run.params.kept is not None and run.instance.host != run.params.destination:
            run.hypervisor.destroy(run.instance.uuid, disk=not run.params.kept)

    def release_claim(self, run: StepContext[EvacuateParams]) -> None:
        """Release the room claimed at the destination."""
        with run.fenced():
            moves.release_claim(run)

    def abandon(self, run: StepContext[EvacuateParams], error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server as it was on its fenced host, with a fault: it can be evacuated again."""
        if not rebuild.was_taken(run):
            state.abandon(run.instance, _final_move(run), fault_of(error), power_state)


def _task_of(waiting: Step | None) -> TaskState | None:
    """Return the task_state of the waiting step's action, whatever an earlier evacuation has made of it."""
    if waiting is None:
        return None
    action = registry.named(waiting.action.key)
    move = action.move_for(action.params_type.load(waiting.action.params))
    return move.busy if move is not None else None


def _final_move(run: StepContext[EvacuateParams]) -> Move:
    """Return the move that ends with the task_state of the earlier request, if that request still waits."""
    waits = Step.objects.filter(pk=run.params.follows or 0, state=Step.State.QUEUED).exists()
    return rebuild.move(on=run.params.on, then=run.params.task if waits else None)


def must_be_gone(host: str) -> None:
    """Raise BadRequest or Conflict unless an operator forced the host down and it has been silent since."""
    service = Service.objects.of_host(host)
    if service is None or fenced.is_fenced(service):
        return
    if service.is_up:
        raise BadRequest(f"Compute service of {host} is still in use.")
    if service.forced_down:
        raise Conflict(
            f"Host {host} was forced down, and reports again: its guests may run. Turn the machine off, then say "
            f"again that it is down."
        )
    raise Conflict(
        f"Compute service of {host} is down, but it is not confirmed that its guests are off. Turn the machine off, "
        f"then: openstack compute service set --down {host} {COMPUTE}"
    )


def _must_accept_server(instance: Instance, host: str) -> None:
    """Raise NotFound, BadRequest or Conflict when the named host cannot take the server."""
    if not Service.objects.computes(host=host).exists():
        raise NotFound(f"Compute host {host} not found.")
    if host == instance.host:
        raise BadRequest("The target host can't be the same one.")
    moves.must_be_possible(instance, host)
