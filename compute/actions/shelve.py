"""Put a server on the shelf: its disk becomes an image, and its host is free for others."""

from __future__ import annotations

from typing import Any

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
MEMORY = frozenset({PowerState.PAUSED, PowerState.SUSPENDED})  # it would be lost


class Shelve(shelve.Offloads):
    """Active, stopped, paused or suspended -> shelved, or shelved and offloaded at once.

    A snapshot that fails leaves the server as it was: on again if it was on. One that is paused or suspended is
    let go only when its disk is safe, so it keeps its memory till then.
    """

    key = name = "shelve"
    policy = "os_compute_api:os-shelve:shelve"
    unsupported_on_bare_metal = bare_metal.CANNOT_COPY
    body = options.add_to_schema()
    steps = (
        StepSpec("register", "conductor_shelve_image", On.CONDUCTOR, undo="drop_image"),
        StepSpec("power_off", "compute_shelve_power_off", undo="power_on_again"),
        StepSpec("snapshot", "compute_shelve_instance", queue=OPS, long=True),
        StepSpec("offload", "compute_shelve_offload_instance", queue=OPS, no_return=True),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> dict[str, Any]:
        """Which image it will be."""
        image_id = new_id()
        known = {"image_id": image_id, "image_ticket": tickets.issue(image_id, "write")}
        return known | {"offload": settings.SHELVED_OFFLOAD_TIME == 0} | options.asked(asked.body)

    def move_for(self, params: dict[str, Any]) -> Move:
        """By what the operator wants of shelved servers."""
        return OFFLOAD if params.get("offload") else KEEP

    def register(self, run: StepContext) -> None:
        """Here and not in the API: whoever dies before it has left nothing."""
        with run.fenced():
            shelve.make_image(run.instance, run.params["image_id"])

    def power_off(self, run: StepContext) -> None:
        """With grace."""
        if run.hypervisor.power_state(run.instance.uuid) in MEMORY:
            run.note("keeps its memory until its disk is safe")
        else:
            temporary_power_off.turn_off(run)

    def snapshot(self, run: StepContext) -> None:
        """An image that is there already is success. Then nothing of the guest runs any more."""
        image_id, uuid = run.params["image_id"], run.instance.uuid
        with image_transfer.scratch(image_id) as path:
            run.hypervisor.snapshot(uuid, path)
            image_transfer.upload(image_id, run.params["image_ticket"], path)
        run.hypervisor.power_off(uuid)

    def record_step(self, run: StepContext, power_state: PowerState | None) -> None:
        """From the moment it is complete the image is the server's."""
        super().record_step(run, power_state)
        if run.step.name == "snapshot":
            state.during(
                run.instance, self.move_for(run.params), power_state=PowerState.SHUTDOWN,
                shelved_image_id=run.params["image_id"], shelved_at=database_clock.now(),
            )  # fmt: skip
        elif run.step.name == "drop_image" and not shelve.is_offloading(run):
            state.set_location(run.instance, shelved_image_id="", shelved_at=None)

    def next_step(self, done: str, run: StepContext) -> StepSpec | None:
        """It may stay on its host for a while."""
        return None if done == "snapshot" and not run.params["offload"] else super().next_step(done, run)

    def abandon(self, run: StepContext, error: BaseException, power_state: PowerState | None) -> None:
        """As it was; shelved, when the host does not let go of it."""
        if shelve.is_offloading(run):
            state.finish(run.instance, KEEP)
        else:
            super().abandon(run, error, power_state)

    def power_on_again(self, run: StepContext) -> None:
        """It is not on the shelf."""
        if not shelve.is_offloading(run):
            temporary_power_off.turn_on_again(run)

    def drop_image(self, run: StepContext) -> None:
        """On a conductor: nobody needs it."""
        if not shelve.is_offloading(run):
            with run.fenced():
                shelve.drop_image(run.params["image_id"])
