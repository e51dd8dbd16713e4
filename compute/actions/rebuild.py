"""Build a server anew on its host, from its own image or another one. What was on its disk is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from cells.models import RequestSpec
from cloud.errors import BadRequest, Conflict
from cloud.images import tickets
from compute import state
from compute.actions.bases import rebuild
from compute.contract import validation
from compute.contract.microversion import Version
from compute.contract.validation import NAME
from compute.models import ComputeNode, Instance
from compute.operations.action import (
    OPS,
    ActionParams,
    ActionRequest,
    ActionResponse,
    On,
    ServerAction,
    StepContext,
    StepSpec,
    fault_of,
)
from compute.placement import claims, quota
from compute.servers import image_transfer, references
from compute.shutdown import grace
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

TEXT = {"type": "string"}
ALWAYS: dict[str, Any] = {
    "name": NAME,
    "imageRef": validation.UUID,
    "adminPass": TEXT,
    "metadata": references.METADATA,
    "preserve_ephemeral": validation.BOOLEAN,
    "OS-DCF:diskConfig": {"type": "string", "enum": ["AUTO", "MANUAL"]},
    "accessIPv4": validation.IPV4,
    "accessIPv6": validation.IPV6,
}
SINCE: list[tuple[Version, dict[str, Any]]] = [
    ((2, 19), {"description": {"type": ["string", "null"], "maxLength": 255}}),
    ((2, 54), {"key_name": {"type": ["string", "null"], "minLength": 1, "maxLength": 255}}),
    ((2, 57), {"user_data": {"type": ["string", "null"], "maxLength": 65535}}),
    ((2, 63), {"trusted_image_certificates": {"type": ["array", "null"], "maxItems": 50, "items": TEXT}}),
    ((2, 90), {"hostname": validation.HOSTNAME}),
    ((2, 94), {"hostname": validation.FQDN}),
]
# in the body -> column of the server
PLAIN = {
    "name": "display_name", "description": "description", "metadata": "metadata", "hostname": "hostname",
    "OS-DCF:diskConfig": "disk_config", "accessIPv4": "access_ip_v4", "accessIPv6": "access_ip_v6",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildParams(ActionParams):
    """The parameters of a rebuild."""

    was: VmState = VmState.ACTIVE  # before the rebuild
    new: dict[str, Any] = field(default_factory=dict)  # the columns of the server that change
    image_ticket: str = ""  # permits the download


class Rebuild(ServerAction[RebuildParams]):
    """Active or in error -> active; stopped -> stopped. The guest is asked to shut down first."""

    key = name = "rebuild"
    policy = "os_compute_api:servers:rebuild"
    builds = True
    move = Move(rebuild.FROM, TaskState.REBUILDING, VmState.ACTIVE, failed=VmState.ERROR)
    steps = (
        StepSpec("record_image", "rebuild_server", On.CONDUCTOR, undo="restore_image_record"),
        StepSpec("power_off", "compute_stop_instance"),
        StepSpec("destroy_guest", "compute_detach_instance", queue=OPS),
        StepSpec("build", "compute_rebuild_instance", queue=OPS, long=True),
    )

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema of the microversion. It allows no additional properties."""
        fields = dict(ALWAYS)
        for since, added in SINCE:
            if version >= since:
                fields |= added
        if version <= (2, 56):
            fields["personality"] = {"type": "array"}
        return {"type": "object", "properties": fields, "required": ["imageRef"], "additionalProperties": False}

    def prepare(self, instance: Instance, asked: ActionRequest) -> RebuildParams:
        """Return the image and the new columns of the server. Raises BadRequest, Forbidden."""
        body = asked.body
        _refuse_what_we_cannot(body)
        image = references.image(body["imageRef"], asked.caller, missing="Cannot find image for rebuild")
        references.must_fit(image, instance.memory_mb, instance.disk_gb)
        quota.check_metadata(instance.project_id, body.get("metadata") or {})
        new = {PLAIN[name]: value for name, value in body.items() if name in PLAIN}
        if "accessIPv6" in body:
            new["access_ip_v6"] = validation.short_ipv6(body["accessIPv6"])
        if "user_data" in body:
            new["user_data"] = references.user_data(body["user_data"] or "")
        if "key_name" in body:
            name = body["key_name"]
            new |= references.key(name, asked.caller) if name else {"key_name": None, "key_data": ""}
        new |= {"image_id": image.id, "image": references.image_facts(image)}
        ticket = tickets.issue(image.id, "read")
        return RebuildParams(was=VmState(instance.vm_state), new=new, image_ticket=ticket)

    def move_for(self, params: RebuildParams) -> Move:
        """Return the move. A stopped server stays stopped."""
        return rebuild.move(on=params.was != VmState.STOPPED, failed=VmState.ERROR)

    def begin(self, instance: Instance, asked: ActionRequest, params: RebuildParams) -> RebuildParams | None:
        """Take the server and claim room: one that was never built has none. Raises Conflict when the host is full."""
        begun = super().begin(instance, asked, params)
        node = ComputeNode.objects.filter(hypervisor_hostname=instance.node).first()
        size = (instance.vcpus, instance.memory_mb, instance.disk_gb)
        if node is None or not claims.claim(instance.uuid, node, *size):
            raise Conflict(f"Host {instance.host} has no room for instance {instance.uuid}.")
        return begun

    def answer(self, params: RebuildParams, asked: ActionRequest) -> ActionResponse:
        """Return the server with its new columns."""
        return ActionResponse(202, server=params.new)

    # -- the steps

    def record_image(self, run: StepContext[RebuildParams]) -> None:
        """Record the new image in the request spec, which is shown while the cell is down.

        Runs on a conductor, which has access to the global database.
        """
        with run.fenced():
            RequestSpec.objects.filter(pk=run.instance.uuid).update(image_id=run.params.new["image_id"])

    def restore_image_record(self, run: StepContext[RebuildParams]) -> None:
        """Record the image of the server's row again, however far the rebuild came."""
        with run.fenced():
            RequestSpec.objects.filter(pk=run.instance.uuid).update(image_id=run.instance.image_id)

    def power_off(self, run: StepContext[RebuildParams]) -> None:
        """Shut the guest down with its grace period. A missing guest is success."""
        run.note(grace.shut_down(run))

    def destroy_guest(self, run: StepContext[RebuildParams]) -> None:
        """Destroy the guest and its old disk."""
        run.hypervisor.destroy(run.instance.uuid)

    def build(self, run: StepContext[RebuildParams]) -> None:
        """Build the guest. A guest that is built already is success."""
        fetch = image_transfer.source(run.instance.image_id, run.params.image_ticket)
        on = self.move_for(run.params).done == VmState.ACTIVE
        run.hypervisor.spawn(run.instance.as_guest(), fetch, on=on)

    def record_step(self, run: StepContext[RebuildParams], power_state: PowerState | None) -> None:
        """Write the new columns after `destroy_guest`: the old disk is gone."""
        if run.runs(self.destroy_guest):
            state.during(run.instance, self.move_for(run.params), **run.params.new)

    def complete(self, run: StepContext[RebuildParams], power_state: PowerState | None) -> None:
        """Finish the move, record the launch time and clear the fault."""
        also: dict[str, Any] = {"launched_at": timezone.now(), "fault": None}
        state.finish(run.instance, self.move_for(run.params), power_state, **also)

    def abandon(self, run: StepContext[RebuildParams], error: BaseException, power_state: PowerState | None) -> None:
        """Set the server to ERROR; leave it as it was when its disk was not touched."""
        if rebuild.was_taken(run):
            return
        touched = run.action.steps.filter(name=self.destroy_guest.__name__, attempts__gt=0).exists()
        move = rebuild.move(on=True, failed=VmState.ERROR if touched else None)
        state.abandon(run.instance, move, fault_of(error), power_state)
        if run.instance.launched_at is None:
            claims.release(run.instance.uuid)


def _refuse_what_we_cannot(body: dict[str, Any]) -> None:
    """Raise BadRequest for options that would silently have no effect."""
    if body.get("personality"):
        raise BadRequest("File injection is not offered by this cloud.")
    if body.get("trusted_image_certificates"):
        raise BadRequest("Image signature certificate validation is not offered by this cloud.")
    if validation.is_true(body.get("preserve_ephemeral", False)):
        raise BadRequest("This cloud has no ephemeral disks to preserve.")
