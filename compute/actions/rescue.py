"""Boot a rescue disk, with the server's own disk as the second one, so that the user can repair that."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field
from typing import Any

from cloud.images import tickets
from compute.contract.validation import UUID
from compute.models import Instance
from compute.operations.action import OPS, ActionRequest, ActionResponse, ServerAction, StepContext, StepSpec
from compute.servers import image_transfer, references
from compute.shutdown import options, temporary_power_off
from compute.state import Move, TaskState, VmState
from compute.virt.base import Image

LETTERS = string.ascii_letters + string.digits
PASSWORD_LENGTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueParams(temporary_power_off.TemporaryPowerOffParams):
    """The parameters of a rescue."""

    image_id: str = ""  # of the rescue disk
    image: dict[str, Any] = field(default_factory=dict)  # its facts, as `Instance.image`
    image_ticket: str = ""  # permits the download


class Rescue(ServerAction[RescueParams]):
    """Active, stopped or ERROR -> rescued. When the rescue disk does not boot, the server is as it was."""

    key = name = "rescue"
    policy = "os_compute_api:os-rescue"
    body = options.add_to_schema({
        "type": ["object", "null"],
        "properties": {"adminPass": {"type": "string"}, "rescue_image_ref": UUID},
        "additionalProperties": False,
    })  # fmt: skip
    move = Move(frozenset({VmState.ACTIVE, VmState.STOPPED, VmState.ERROR}), TaskState.RESCUING, VmState.RESCUED)
    steps = (
        StepSpec("power_off", "compute_rescue_power_off", undo="power_on_again"),
        StepSpec("rescue", "compute_rescue_instance", queue=OPS, undo="unrescue", long=True),
    )

    def prepare(self, instance: Instance, asked: ActionRequest) -> RescueParams:
        """Return the image to boot: the one that is named, or the server's own. Raises BadRequest."""
        image_id, facts = instance.image_id, instance.image
        named = (asked.body or {}).get("rescue_image_ref")
        if named:
            unusable = f"Requested rescue image '{named}' is not supported"
            chosen = references.image(named, asked.caller, missing=unusable)
            image_id, facts = chosen.id, references.image_facts(chosen)
        ticket = tickets.issue(image_id, "read")
        return RescueParams(
            image_id=image_id, image=facts, image_ticket=ticket, shutdown_timeout=options.asked(asked.body)
        )

    def answer(self, params: RescueParams, asked: ActionRequest) -> ActionResponse:
        """Return the requested password or a random one. It is stored nowhere, and no guest is told it."""
        made = "".join(secrets.choice(LETTERS) for _ in range(PASSWORD_LENGTH))
        return ActionResponse(200, {"adminPass": (asked.body or {}).get("adminPass") or made})

    def power_off(self, run: StepContext[RescueParams]) -> None:
        """Shut the guest down with its grace period."""
        temporary_power_off.turn_off(run)

    def rescue(self, run: StepContext[RescueParams]) -> None:
        """Boot the rescue disk. A guest that is in rescue already is success."""
        params, facts = run.params, run.params.image
        image = Image(
            params.image_id, facts.get("disk_format", "raw"), facts.get("size") or 0, facts.get("checksum") or "",
            facts.get("virtual_size") or 0, facts.get("properties", {}),
        )  # fmt: skip
        fetch = image_transfer.source(image.id, params.image_ticket)
        run.hypervisor.rescue(run.instance.as_guest(), image, fetch)

    def unrescue(self, run: StepContext[RescueParams]) -> None:
        """Make the server's own disk the boot disk again."""
        if not run.instance.deleted:
            run.hypervisor.unrescue(run.instance.as_guest())

    def power_on_again(self, run: StepContext[RescueParams]) -> None:
        """Power the guest on again if it was on: it did not get into rescue."""
        temporary_power_off.turn_on_again(run)
