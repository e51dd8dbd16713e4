"""Unshelve a server: power it on where it is, or build it from its image on a newly picked host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from django.utils import timezone

from cells.models import RequestSpec
from cloud.errors import BadRequest, Conflict
from cloud.images import tickets
from compute import state
from compute.actions.bases import shelve
from compute.contract import policy
from compute.contract.microversion import Version
from compute.contract.validation import NAME
from compute.errors import StateConflict
from compute.migration import moves
from compute.models import ComputeNode, Instance
from compute.operations import journal
from compute.operations.action import OPS, ActionRequest, On, ServerAction, StepContext, StepSpec
from compute.scheduler import select
from compute.servers import image_transfer
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

FROM = frozenset({VmState.SHELVED, VmState.SHELVED_OFFLOADED})
OFF_THE_SHELF: dict[str, Any] = {"shelved_image_id": "", "shelved_at": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnshelveParams(moves.MoveParams):
    """The parameters of an unshelve. Without a source every host of the cell is a candidate."""

    was: VmState
    image_id: str = ""  # of the disk
    image: dict[str, Any] = field(default_factory=dict)  # its facts, as `shelve.facts_of()`
    image_ticket: str = ""  # permits the download
    pinned: str = ""  # the zone to which the server is pinned from now on
    zone_before: str = ""  # the zone to which it was pinned before


class Unshelve(ServerAction[UnshelveParams]):
    """Shelved, on a host or on none -> active. When no host takes it, it stays as it is."""

    key = name = "unshelve"
    policy = "os_compute_api:os-shelve:unshelve"
    needs_host = False
    move = Move(FROM, TaskState.UNSHELVING, VmState.ACTIVE)
    steps = (
        StepSpec("power_on", "compute_start_instance"),  # of a server that has a host; others begin with `pick`
        StepSpec("pick", "schedule_instances", On.CONDUCTOR, undo="release_claim"),
        StepSpec(
            "build", "compute_unshelve_instance", On.DEST, OPS, undo="cleanup_destination", no_return=True, long=True
        ),
        StepSpec("delete_image", "conductor_delete_shelved_image", On.CONDUCTOR, OPS),
    )

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema: a zone can be named since 2.77, a host since 2.91; before, it was ignored."""
        if version < (2, 77):
            return {}
        asked: dict[str, Any] = {"type": ["object", "null"], "additionalProperties": False}
        if version < (2, 91):
            return asked | {"properties": {"availability_zone": NAME}, "required": ["availability_zone"]}
        zone = {"type": ["string", "null"]}
        return asked | {"properties": {"availability_zone": zone, "host": {"type": "string"}}}

    def prepare(self, instance: Instance, asked: ActionRequest) -> UnshelveParams:
        """Return the destination and the image. Raises BadRequest, Conflict, Forbidden with Nova's texts."""
        named = asked.body if asked.microversion >= (2, 77) and isinstance(asked.body, dict) else {}
        was = VmState(instance.vm_state)
        pinned = instance.pinned_availability_zone
        params = UnshelveParams(was=was, image_id=instance.shelved_image_id, zone_before=pinned)
        if was not in FROM:
            return params
        if named and was == VmState.SHELVED:
            raise Conflict(
                f'Specifying an availability zone or a host when unshelving server "{instance.uuid}" with status '
                f'"{was}" is not supported. The server status must be SHELVED_OFFLOADED.'
            )
        if was is VmState.SHELVED:
            return params
        host, zone = _destination(named, pinned, asked)
        image = _image(instance)
        return replace(
            params, host=host, pinned=zone, image=image, image_ticket=tickets.issue(params.image_id, "read")
        )

    def move_for(self, params: UnshelveParams) -> Move:
        """Return the move, from exactly the state the params were made for."""
        return replace(self.move, start=frozenset({params.was})) if params.was in FROM else self.move

    def first_step(self, params: UnshelveParams) -> StepSpec:
        """Return `power_on` for a server that has a host, else `pick`."""
        return self.steps[0] if params.was is VmState.SHELVED else self.steps[1]

    # -- from its own host

    def power_on(self, run: StepContext[UnshelveParams]) -> None:
        """Power the guest on. A running guest is success."""
        run.hypervisor.power_on(run.instance.as_guest())

    # -- from no host

    def pick(self, run: StepContext[UnshelveParams]) -> None:
        """Pick a host, claim room on it, and record the zone the server is pinned to from now on."""
        params = run.params
        moves.claim(run, moves.wanted(run.instance, params.host, zone=params.pinned))
        with run.fenced():
            RequestSpec.objects.filter(pk=run.instance.uuid).update(availability_zone=params.pinned)
        run.note(f"to {run.params.destination}")

    def build(self, run: StepContext[UnshelveParams]) -> None:
        """Build the guest. A built guest is success. Its disk is the shelved image, which no other server uses."""
        guest, facts = run.instance.as_guest(), run.params.image
        image = replace(guest.image, id=run.params.image_id, sole=True, **facts)
        fetch = image_transfer.source(image.id, run.params.image_ticket)
        run.hypervisor.spawn(replace(guest, image=image), fetch)

    def cleanup_destination(self, run: StepContext[UnshelveParams]) -> None:
        """Destroy the guest on the destination: the server does not live there."""
        moves.destroy_stale(run, run.params.destination)

    def release_claim(self, run: StepContext[UnshelveParams]) -> None:
        """Release the claimed room, and pin the server to its earlier zone."""
        with run.fenced():
            moves.release_claim(run)
            spec = RequestSpec.objects.filter(pk=run.instance.uuid)
            spec.update(availability_zone=run.params.zone_before)

    # -- the end

    def delete_image(self, run: StepContext[UnshelveParams]) -> None:
        """Delete the shelved image: the disk is on the host now. On a conductor."""
        with run.fenced():
            shelve.delete_image(run.params.image_id)

    def must_run(self, name: str) -> bool:
        """Return True for `delete_image`: an image that no server needs is deleted, whatever becomes of the server."""
        return name == self.delete_image.__name__ or super().must_run(name)

    def record_step(self, run: StepContext[UnshelveParams], power_state: PowerState | None) -> None:
        """Finish the move after `power_on` or `build`; close a failed action after `cleanup_destination`.

        Raises StateConflict.
        """
        move, params = self.move_for(run.params), run.params
        if run.runs(self.power_on):
            state.finish(run.instance, move, power_state, **OFF_THE_SHELF)
        elif run.runs(self.build):
            self._arrive(run, move, power_state)
        elif run.runs(self.cleanup_destination):
            moves.release_claim(run)
            journal.close_action(run.action, outcome=f"it was taken, and left {params.destination}", failed=True)

    def next_step(self, done: str, run: StepContext[UnshelveParams]) -> StepSpec | None:
        """Return `cleanup_destination` after a build during which another action took the server."""
        if run.runs(self.power_on):
            return self.find(self.delete_image.__name__)
        if run.runs(self.build) and run.instance.host != run.params.destination:
            return self.find(self.cleanup_destination.__name__)
        return super().next_step(done, run)

    def complete(self, run: StepContext[UnshelveParams], power_state: PowerState | None) -> None:
        """Change nothing: `record_step` has recorded the end."""

    @staticmethod
    def _arrive(run: StepContext[UnshelveParams], move: Move, power_state: PowerState | None) -> None:
        params = run.params
        where = {
            "host": params.destination, "node": params.destination_node, "availability_zone": params.zone,
            "pinned_availability_zone": params.pinned,
        }  # fmt: skip
        try:
            state.finish(run.instance, move, power_state, launched_at=timezone.now(), **where, **OFF_THE_SHELF)
        except StateConflict:
            run.note("the server was taken while it was built")


def _destination(named: dict[str, Any], pinned: str, asked: ActionRequest) -> tuple[str, str]:
    """Return the host ("": any) and the zone to pin: the named zone; none when the request clears it.

    Raises BadRequest, Conflict, Forbidden.
    """
    host, zone = "", pinned
    known = {one.host: one for one in select.read_hosts()}
    if "availability_zone" in named:
        zone = named["availability_zone"] or ""
        if zone and zone not in {one.zone for one in known.values() if one.up and one.enabled}:
            raise BadRequest("The requested availability zone is not available")
    if asked.microversion >= (2, 91):
        host = named.get("host") or ""
    if host:
        policy.check(asked.caller, "os_compute_api:os-shelve:unshelve_to_host")
        if not ComputeNode.objects.filter(host=host).exists():
            raise BadRequest(f"Compute host {host} could not be found.")
        if zone and known[host].zone != zone:
            raise Conflict(f'Host "{host}" is not in the availability zone "{zone}".')
    return host, zone


def _image(instance: Instance) -> dict[str, Any]:
    """Return the facts of the server's shelved image. Raises Conflict when there is none."""
    image_id = instance.shelved_image_id
    facts = shelve.facts_of(image_id)
    if facts is None:
        raise Conflict(f"Image {image_id}, the disk of shelved instance {instance.uuid}, could not be found.")
    return dict(facts)
