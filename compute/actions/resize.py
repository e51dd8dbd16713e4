"""Give a server another flavor, which moves it to another host."""

from __future__ import annotations

from typing import Any

from cloud.errors import BadRequest
from compute.contract import bare_metal
from compute.contract.microversion import Version
from compute.errors import FlavorNotFound
from compute.migration import cold, moves
from compute.models import Flavor, Instance
from compute.operations.action import ActionRequest, Role
from compute.placement import quota
from compute.servers import flavors
from compute.shutdown import options

FLAVOR = {"type": ["string", "integer"], "minLength": 1}
DISK_CONFIG, DISK_COLUMN = "OS-DCF:diskConfig", "disk_config"
TWICE = {"not": {"required": ["flavorRef"]}, "errorMessage": "flavor_id is another name of flavorRef: say one of them."}


class Resize(cold.ColdMove):
    """Active or stopped -> resized, with the new flavor, until the user confirms or reverts it."""

    key = name = "resize"
    policy = "os_compute_api:servers:resize"
    role = Role.RESIZE

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema. `flavor_id` is the key in the Nova spec "Controlled shutdown of guests"."""
        disk_config = {"type": "string", "enum": ["AUTO", "MANUAL"]}
        return options.add_to_schema({
            "type": "object",
            "properties": {"flavorRef": FLAVOR, "flavor_id": FLAVOR, DISK_CONFIG: disk_config},
            "if": {"required": ["flavor_id"]}, "then": TWICE, "else": {"required": ["flavorRef"]},
            "additionalProperties": False,
        })  # fmt: skip

    def prepare(self, instance: Instance, asked: ActionRequest) -> cold.ColdMoveParams:
        """Check the new flavor and the quota, and return the params. Raises BadRequest, QuotaExceeded."""
        body = asked.body
        flavor = _flavor(str(body["flavor_id"] if "flavor_id" in body else body["flavorRef"]), instance, asked)
        moves.must_support(instance)
        if bare_metal.is_asked(flavor.snapshot()):
            raise BadRequest(f"Flavor {flavor.flavor_id} is of bare metal: no virtual machine can become one.")
        new = {
            "vcpus": flavor.vcpus, "memory_mb": flavor.memory_mb, "disk_gb": flavor.disk_gb,
            "flavor_id": flavor.flavor_id, "flavor": flavor.snapshot(),
        }  # fmt: skip
        quota.must_fit(instance.project_id, instance.uuid, flavor.vcpus, flavor.memory_mb)
        begun = cold.begun_at(instance, options.asked(body), new=new, flavor=flavor)
        if DISK_CONFIG in body:
            begun.old[DISK_COLUMN], begun.new[DISK_COLUMN] = instance.disk_config, body[DISK_CONFIG]
        return begun


def _flavor(flavor_id: str, instance: Instance, asked: ActionRequest) -> Flavor:
    """Return the new flavor. Raises BadRequest when the server cannot have it."""
    flavor_id = flavor_id.rsplit("/", 1)[-1]
    try:
        flavor = flavors.get(flavor_id, asked.caller)
    except FlavorNotFound as missing:
        raise BadRequest(missing.message) from missing
    if flavor.disabled:
        raise BadRequest(f"Flavor {flavor_id} could not be found.")
    if flavor.flavor_id == instance.flavor_id:
        raise BadRequest("When resizing, instances must change flavor!")
    if flavor.disk_gb < instance.disk_gb:
        raise BadRequest(
            f"Resize to a smaller disk is not allowed: it has {instance.disk_gb} GiB, the flavor {flavor.disk_gb}."
        )
    return flavor
