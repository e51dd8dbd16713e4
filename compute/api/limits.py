"""limits: the absolute limits and the usage of a project, in one answer."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from compute.api import quota_sets
from compute.api.base import ComputeView
from compute.api.fields import check_query_keys
from compute.contract.microversion import Version
from compute.placement import quota, server_groups

_NAMES = {
    "instances": "maxTotalInstances", "cores": "maxTotalCores", "ram": "maxTotalRAMSize",
    "key_pairs": "maxTotalKeypairs", "metadata_items": "maxServerMeta", "server_groups": "maxServerGroups",
    "server_group_members": "maxServerGroupMembers", "floating_ips": "maxTotalFloatingIps",
    "security_groups": "maxSecurityGroups", "security_group_rules": "maxSecurityGroupRules",
    "injected_files": "maxPersonality", "injected_file_content_bytes": "maxPersonalitySize",
}  # fmt: skip


class LimitsView(ComputeView):
    """GET /limits."""

    def get(self, request: Request) -> Response:
        """Return limits and usage of the caller's project; of any project for an admin. There are no rate limits."""
        check_query_keys(self, "tenant_id", "reserved")
        self.check("os_compute_api:limits")
        project_id = request.query_params.get("tenant_id", self.caller.project_id)
        if project_id != self.caller.project_id:
            self.check("os_compute_api:limits:other_project", project_id)
        absolute = _allowed(project_id, self.version) | _used(project_id, self.version)
        return Response({"limits": {"rate": [], "absolute": absolute}})


def _allowed(project_id: str, version: Version) -> dict[str, int]:
    found = quota_sets.limits(project_id, version)
    shown = {_NAMES[name]: limit for name, limit in found.items() if name in _NAMES}
    if version < (2, 39):  # since 2.39 there is no image proxy, which this limited
        shown["maxImageMeta"] = found["metadata_items"]
    return shown


def _used(project_id: str, version: Version) -> dict[str, int]:
    used = quota.usage(project_id)
    shown = {
        "totalInstancesUsed": used.instances,
        "totalCoresUsed": used.cores,
        "totalRAMUsed": used.ram,
        "totalServerGroupsUsed": server_groups.count(project_id),
    }
    return shown | ({"totalFloatingIpsUsed": 0, "totalSecurityGroupsUsed": 0} if version < (2, 36) else {})
