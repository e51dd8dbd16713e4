"""Sub-resources of a flavor: its extra specs, and the projects that may use it when it is private."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest, Conflict, NotFound
from compute.api.base import ComputeView
from compute.api.fields import object_schema
from compute.contract import validation
from compute.models import Flavor, FlavorAccess
from compute.servers import flavors

RULE = "os_compute_api:os-flavor-extra-specs:"
_ONE = {**validation.METADATA, "minProperties": 1, "maxProperties": 1}
_MANY = object_schema({"extra_specs": validation.METADATA}, ["extra_specs"])
_TENANT = object_schema(
    {"tenant": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": r"^[a-zA-Z0-9-]*\Z"}}, ["tenant"]
)


class ExtraSpecsView(ComputeView):
    """GET and POST /flavors/{id}/os-extra_specs."""

    def get(self, request: Request, flavor_id: str) -> Response:
        """Return all extra specs."""
        self.check(f"{RULE}index")
        return Response({"extra_specs": flavors.get(flavor_id, self.caller).extra_specs})

    def post(self, request: Request, flavor_id: str) -> Response:
        """Add extra specs; replace those with the same key."""
        self.check(f"{RULE}create")
        wanted = validation.check(request.data, _MANY)["extra_specs"]
        _change(flavors.get(flavor_id, self.caller), wanted)
        return Response({"extra_specs": wanted})


class ExtraSpecView(ComputeView):
    """GET, PUT and DELETE /flavors/{id}/os-extra_specs/{key}."""

    def get(self, request: Request, flavor_id: str, key: str) -> Response:
        """Return one extra spec."""
        self.check(f"{RULE}show")
        specs = flavors.get(flavor_id, self.caller).extra_specs
        if key not in specs:
            raise _no_key(flavor_id, key)
        return Response({key: specs[key]})

    def put(self, request: Request, flavor_id: str, key: str) -> Response:
        """Set one extra spec."""
        self.check(f"{RULE}update")
        wanted = validation.check(request.data, _ONE)
        if key not in wanted:
            raise BadRequest("Request body and URI mismatch")
        _change(flavors.get(flavor_id, self.caller), wanted)
        return Response(wanted)

    def delete(self, request: Request, flavor_id: str, key: str) -> Response:
        """Delete one extra spec."""
        self.check(f"{RULE}delete")
        found = flavors.get(flavor_id, self.caller)
        if key not in found.extra_specs:
            raise _no_key(flavor_id, key)
        _change(found, {}, drop=key)
        return Response(status=200)


class FlavorAccessView(ComputeView):
    """GET /flavors/{id}/os-flavor-access."""

    def get(self, request: Request, flavor_id: str) -> Response:
        """List the projects that may use a private flavor."""
        self.check("os_compute_api:os-flavor-access")
        found = flavors.get(flavor_id, self.caller)
        if found.is_public:
            raise NotFound("Access list not available for public flavors.")
        return Response(_access(found))


class FlavorActionView(ComputeView):
    """POST /flavors/{id}/action: addTenantAccess, removeTenantAccess."""

    def post(self, request: Request, flavor_id: str) -> Response:
        """Carry out the action that the single key of the body names."""
        body = self.body()
        if len(body) != 1:
            raise BadRequest("Malformed request body")
        (key, order), = body.items()
        action = {"addTenantAccess": self._add, "removeTenantAccess": self._remove}.get(key)
        if action is None:
            raise BadRequest(f"There is no such action: {key}")
        return Response(action(flavor_id, order))

    def _add(self, flavor_id: str, order: Any) -> dict[str, Any]:
        self.check("os_compute_api:os-flavor-access:add_tenant_access")
        project_id = validation.check(order, _TENANT)["tenant"]
        found = flavors.get(flavor_id, self.caller)
        if found.is_public and self.version >= (2, 7):
            raise Conflict("Can not add access to a public flavor.")
        try:
            with transaction.atomic():
                FlavorAccess.objects.create(flavor=found, project_id=project_id)
        except IntegrityError as exc:
            raise Conflict(
                f"Flavor access already exists for flavor {flavor_id} and project {project_id} combination."
            ) from exc
        return _access(found)

    def _remove(self, flavor_id: str, order: Any) -> dict[str, Any]:
        self.check("os_compute_api:os-flavor-access:remove_tenant_access")
        project_id = validation.check(order, _TENANT)["tenant"]
        found = flavors.get(flavor_id, self.caller)
        removed, _ = FlavorAccess.objects.filter(flavor=found, project_id=project_id).delete()
        if not removed:
            raise NotFound(f"Flavor access not found for {flavor_id} / {project_id} combination.")
        return _access(found)


def _access(flavor: Flavor) -> dict[str, Any]:
    projects = flavor.access.order_by("id").values_list("project_id", flat=True)
    return {"flavor_access": [{"flavor_id": flavor.flavor_id, "tenant_id": one} for one in projects]}


def _change(flavor: Flavor, wanted: dict[str, str], drop: str = "") -> None:
    """Change extra specs under a row lock, so two admins who set different keys both keep theirs."""
    with transaction.atomic():
        locked = Flavor.objects.select_for_update(of=("self",)).get(pk=flavor.pk)
        locked.extra_specs = {k: v for k, v in (locked.extra_specs | wanted).items() if k != drop}
        locked.save(update_fields=["extra_specs", "updated_at"])


def _no_key(flavor_id: str, key: str) -> NotFound:
    return NotFound(f"Flavor {flavor_id} has no extra specs with key {key}.")
