"""Shelve a server: its disk becomes an image, and its host can take others."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from cells import database_clock
from cloud.images import tickets
from cloud.images.models import new_id
from compute import state
from compute.actions.bases import shelve
from compute.contract import bare_metal
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, On, StepContext, StepSpec
from compute.servers import image_transfer
from compute.shutdown import options, temporary_power_off
from compute.state import Move, TaskState, VmState
from compute.virt.base import PowerState

FROM = frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.PAUSED, VmState.SUSPENDED})
KEEP = Move(FROM, TaskState.SHELVING, VmState.SHELVED)
OFFLOAD = Move(FROM, TaskState.SHELVING, VmState.SHELVED_OFFLOADED)
MEMORY = frozenset({PowerState.PAUSED, PowerState.SUSPENDED})  # power states in which a power-off loses the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelveParams(temporary_power_off.TemporaryPowerOffParams):
    """The parameters of a shelve."""

    image_id: str = ""
    image_ticket: str = ""  # permits the upload
    offload: bool = False  # whether the server leaves its host at once


class Shelve(shelve.Offloads[ShelveParams]):
    """Active, stopped, paused or suspended -> shelved, or shelved and offloaded at once.

    A snapshot that fails leaves the server as it was: on again if it was on. A guest that is paused or suspended is
    powered off only after its disk is stored, so it keeps its memory until then.
    """

    key = name = "shelve"
    policy = "os_compute_api:os-shelve:shelve"
    unsupported_on_bare_metal = bare_metal.CANNOT_COPY
    body = options.add_to_schema()
    move = KEEP
    steps = (
        StepSpec("create_image_record", "conductor_shelve_image", On.CONDUCTOR, undo="delete_image"),
        StepSpec("power_off", "compute_shelve_power_off", undo="power_on_again"),
        StepSpec("snapshot", "compute_shelve_instance", queue=OPS, long=True),
        StepSpec("offload", "compute_shelve_offload_instance", queue=OPS, no_return=True),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> ShelveParams:
        """Return the id of the image, and the ticket to upload it."""
        image_id = new_id()
        return ShelveParams(
            image_id=image_id, image_ticket=tickets.issue(image_id, "write"),
            offload=settings.SHELVED_OFFLOAD_TIME == 0, shutdown_timeout=options.asked(asked.body),
        )  # fmt: skip

    def move_for(self, params: ShelveParams) -> Move:
        """Return the move: to SHELVED_OFFLOADED when SHELVED_OFFLOAD_TIME is 0, else to SHELVED."""
        return OFFLOAD if params.offload else KEEP

    def create_image_record(self, run: StepContext[ShelveParams]) -> None:
        """Create the image record. Not in the API: a process that dies before the action is recorded would leave it."""
        with run.fenced():
            shelve.create_image_record(run.instance, run.params.image_id)

    def power_off(self, run: StepContext[ShelveParams]) -> None:
        """Shut the guest down with its grace period; leave a paused or suspended guest until its disk is stored."""
        if run.hypervisor.power_state(run.instance.uuid) in MEMORY:
            run.note("keeps its memory until its disk is safe")
        else:
            temporary_power_off.turn_off(run)

    def snapshot(self, run: StepContext[ShelveParams]) -> None:
        """Upload the disk as the shelved image, then power the guest off. A stored image is success."""
        image_id, uuid = run.params.image_id, run.instance.uuid
        with image_transfer.scratch(image_id) as path:
            run.hypervisor.snapshot(uuid, path)
            image_transfer.upload(image_id, run.params.image_ticket, path)
        run.hypervisor.power_off(uuid)

    def record_step(self, run: StepContext[ShelveParams], power_state: PowerState | None) -> None:
        """Record the shelved image after `snapshot`; clear it after `delete_image`."""
        super().record_step(run, power_state)
        if run.runs(self.snapshot):
            state.during(
                run.instance, self.move_for(run.params), power_state=PowerState.SHUTDOWN,
                shelved_image_id=run.params.image_id, shelved_at=database_clock.now(),
            )  # fmt: skip
        elif run.runs(self.delete_image) and not shelve.is_offloading(run):
            state.set_location(run.instance, shelved_image_id="", shelved_at=None)

    def next_step(self, done: str, run: StepContext[ShelveParams]) -> StepSpec | None:
        """Return None after `snapshot` when the server stays on its host for a while."""
        return None if run.runs(self.snapshot) and not run.params.offload else super().next_step(done, run)

    def abandon(self, run: StepContext[ShelveParams], error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server as it was; when `offload` has begun, leave it shelved."""
        if shelve.is_offloading(run):
            state.finish(run.instance, KEEP)
        else:
            super().abandon(run, error, power_state)

    def power_on_again(self, run: StepContext[ShelveParams]) -> None:
        """Power the guest on again if it was on: the server is not shelved."""
        if not shelve.is_offloading(run):
            temporary_power_off.turn_on_again(run)

    def delete_image(self, run: StepContext[ShelveParams]) -> None:
        """Delete the image, which no server needs. On a conductor."""
        if not shelve.is_offloading(run):
            with run.fenced():
                shelve.delete_image(run.params.image_id)
