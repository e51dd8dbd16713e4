"""os-quota-sets: the limits of a project."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest
from compute.api.base import ComputeView
from compute.api.fields import LARGEST, check_query_keys, object_schema, parse_int
from compute.contract import validation
from compute.contract.microversion import Version
from compute.models import Quota
from compute.placement import quota, server_groups

RULE = "os_compute_api:os-quota-sets:"
NETWORK = {"fixed_ips": -1, "floating_ips": -1, "security_groups": -1, "security_group_rules": -1}
INJECTED = {"injected_files": 5, "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255}
_LIMIT = {"type": ["integer", "string"], "pattern": r"^-?[0-9]+\Z", "minimum": -1, "maximum": LARGEST}


class QuotaSetView(ComputeView):
    """GET, PUT and DELETE /os-quota-sets/{project}."""

    def get(self, request: Request, project_id: str) -> Response:
        """Return the limits in force."""
        check_query_keys(self, "user_id")
        self.check(f"{RULE}show", project_id)
        return Response({"quota_set": {"id": project_id, **limits(project_id, self.version)}})

    def put(self, request: Request, project_id: str) -> Response:
        """Set limits of the project. Raises BadRequest for one below the usage, unless forced."""
        check_query_keys(self, "user_id")
        self.check(f"{RULE}update", project_id)
        order = validation.check(request.data, _update(self.version))["quota_set"]
        if request.query_params.get("user_id"):
            raise BadRequest("Quotas of single users are not supported; set those of the project.")
        wanted = {name: parse_int(name, value, -1) for name, value in order.items() if name != "force"}
        if not validation.is_true(order.get("force", False)):
            _refuse_below_usage(project_id, wanted)
        quota.set_limits(project_id, wanted)
        return Response({"quota_set": limits(project_id, self.version)})

    def delete(self, request: Request, project_id: str) -> Response:
        """Reset the project to the defaults. Users have no limits of their own, so `user_id` deletes nothing."""
        check_query_keys(self, "user_id")
        self.check(f"{RULE}delete", project_id)
        if not request.query_params.get("user_id"):
            quota.forget(project_id)
        return Response(status=202)


class QuotaSetDetailView(ComputeView):
    """GET /os-quota-sets/{project}/detail."""

    def get(self, request: Request, project_id: str) -> Response:
        """Return limits and usage. `reserved` is always 0: a server counts as in use once it is accepted."""
        check_query_keys(self, "user_id")
        self.check(f"{RULE}detail", project_id)
        used = {**asdict(quota.usage(project_id)), "server_groups": server_groups.count(project_id)}
        detail = {
            name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
            for name, limit in limits(project_id, self.version).items()
        }
        return Response({"quota_set": {"id": project_id, **detail}})


class QuotaSetDefaultsView(ComputeView):
    """GET /os-quota-sets/{project}/defaults."""

    def get(self, request: Request, project_id: str) -> Response:
        """Return the default limits."""
        self.check(f"{RULE}defaults", project_id)
        return Response({"quota_set": {"id": project_id, **settings.QUOTA_DEFAULTS, **legacy(self.version)}})


def legacy(version: Version) -> dict[str, int]:
    """Return resources that older microversions show, and that nothing here enforces."""
    return (NETWORK if version < (2, 36) else {}) | (INJECTED if version < (2, 57) else {})


def limits(project_id: str, version: Version) -> dict[str, int]:
    """Return every limit a microversion shows; a legacy limit that is set for the project is shown as set."""
    shown = quota.limits(project_id)
    old = legacy(version)
    if old:
        own = Quota.objects.filter(project_id=project_id, resource__in=old).values_list("resource", "limit")
        shown = shown | old | dict(own)
    return shown


def _update(version: Version) -> dict[str, Any]:
    fields = dict.fromkeys((*quota.RESOURCES, *legacy(version)), _LIMIT)
    return object_schema({"quota_set": object_schema({**fields, "force": validation.BOOLEAN})}, ["quota_set"])


def _refuse_below_usage(project_id: str, wanted: dict[str, int]) -> None:
    """Raise BadRequest with Nova's text for a limit below the usage."""
    for name, used in asdict(quota.usage(project_id)).items():
        limit = wanted.get(name, -1)
        if 0 <= limit < used:
            raise BadRequest(
                f"Quota limit {limit} for {name} must be greater than or equal to already used and "
                f"reserved {used}."
            )
