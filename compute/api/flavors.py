"""flavors: the sizes of servers. Read this module as the example of a resource."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest, Conflict, NotFound
from compute.api import paging
from compute.api.base import ComputeView, links
from compute.api.fields import check_query_keys, object_schema, parse_int
from compute.contract import validation
from compute.contract.microversion import Version
from compute.errors import InvalidInput
from compute.models import Flavor
from compute.servers import flavors

SPECS_RULE = "os_compute_api:os-flavor-extra-specs:index"
_DESCRIPTION = {"type": ["string", "null"], "maxLength": 65535}
_SIZES = {"ram": 1, "vcpus": 1, "disk": 0, "OS-FLV-EXT-DATA:ephemeral": 0, "swap": 0}  # name: least value
_FIELDS = {
    "name": validation.NAME,
    "id": {
        "type": ["string", "number", "null"], "minLength": 1, "maxLength": 255,
        "pattern": r"^(?! )[a-zA-Z0-9. _-]+(?<! )\Z",
    },
    **{size: validation.POSITIVE if least else validation.NON_NEGATIVE for size, least in _SIZES.items()},
    "rxtx_factor": {
        "type": ["number", "string"], "pattern": r"^[0-9]+(\.[0-9]+)?\Z",
        "exclusiveMinimum": 0, "maximum": 3.40282e38,
    },
    "os-flavor-access:is_public": validation.BOOLEAN,
}  # fmt: skip
_UPDATE = object_schema({"flavor": object_schema({"description": _DESCRIPTION}, ["description"])}, ["flavor"])
_SORT_KEYS = {
    "created_at": "created_at", "description": "description", "disabled": "disabled",
    "ephemeral_gb": "ephemeral_gb", "flavorid": "flavor_id", "id": "id", "is_public": "is_public",
    "memory_mb": "memory_mb", "name": "name", "root_gb": "disk_gb", "rxtx_factor": "rxtx_factor",
    "swap": "swap_mb", "updated_at": "updated_at", "vcpu_weight": "id", "vcpus": "vcpus",
}  # fmt: skip


class FlavorsView(ComputeView):
    """GET and POST /flavors."""

    def get(self, request: Request) -> Response:
        """List ids and names."""
        return Response(_listing(self, "/flavors", detail=False))

    def post(self, request: Request) -> Response:
        """Create a flavor; its id is generated when none is given. Raises Conflict."""
        self.check("os_compute_api:os-flavor-manage:create")
        order = validation.check(request.data, _creation(self.version))["flavor"]
        return Response({"flavor": as_json(_create(order), self.version, specs=self.allows(SPECS_RULE))})


class FlavorsDetailView(ComputeView):
    """GET /flavors/detail."""

    def get(self, request: Request) -> Response:
        """List flavors in full."""
        return Response(_listing(self, "/flavors/detail", detail=True))


class FlavorView(ComputeView):
    """GET, PUT and DELETE /flavors/{id}."""

    def get(self, request: Request, flavor_id: str) -> Response:
        """Show a flavor in full."""
        found = flavors.get(flavor_id, self.caller)
        return Response({"flavor": as_json(found, self.version, specs=self.allows(SPECS_RULE))})

    def put(self, request: Request, flavor_id: str) -> Response:
        """Change the description, the only field that can change; since 2.55."""
        if self.version < (2, 55):
            raise NotFound
        self.check("os_compute_api:os-flavor-manage:update")
        order = validation.check(request.data, _UPDATE)["flavor"]
        found = flavors.get(flavor_id, self.caller)
        found.description = order["description"]
        found.save(update_fields=["description", "updated_at"])
        return Response({"flavor": as_json(found, self.version, specs=self.allows(SPECS_RULE))})

    def delete(self, request: Request, flavor_id: str) -> Response:
        """Delete a flavor. Servers keep their copy of it."""
        self.check("os_compute_api:os-flavor-manage:delete")
        flavors.get(flavor_id, self.caller).delete()
        return Response(status=202)


def as_json(flavor: Flavor, version: Version, *, specs: bool) -> dict[str, Any]:
    """Return a flavor in full, as a microversion shows it. `specs`: the caller may see extra specs."""
    shown = {
        "id": flavor.flavor_id,
        "name": flavor.name,
        "ram": flavor.memory_mb,
        "disk": flavor.disk_gb,
        "swap": flavor.swap_mb if flavor.swap_mb or version >= (2, 75) else "",
        "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral_gb,
        "OS-FLV-DISABLED:disabled": flavor.disabled,
        "vcpus": flavor.vcpus,
        "os-flavor-access:is_public": flavor.is_public,
        "rxtx_factor": flavor.rxtx_factor,
        "links": links(f"/flavors/{flavor.flavor_id}"),
    }
    if version >= (2, 55):
        shown["description"] = flavor.description
    if version >= (2, 61) and specs:
        shown["extra_specs"] = flavor.extra_specs
    return shown


def _listing(view: ComputeView, path: str, *, detail: bool) -> dict[str, Any]:
    check_query_keys(view, "limit", "marker", "is_public", "minRam", "minDisk", "sort_key", "sort_dir")
    shown = paging.page(list(_wanted(view)), view.request, "flavor_id")
    specs = detail and view.allows(SPECS_RULE)
    answer: dict[str, Any] = {
        "flavors": [
            as_json(one, view.version, specs=specs) if detail else _brief(one, view.version) for one in shown
        ]
    }
    more = paging.next_link(view.request, path, len(shown), shown[-1].flavor_id) if shown else []
    if more:
        answer["flavors_links"] = more
    return answer


def _brief(flavor: Flavor, version: Version) -> dict[str, Any]:
    shown = {"id": flavor.flavor_id, "name": flavor.name, "links": links(f"/flavors/{flavor.flavor_id}")}
    return {**shown, "description": flavor.description} if version >= (2, 55) else shown


def _wanted(view: ComputeView) -> QuerySet[Flavor]:
    """Return the flavors the query asks for, in its order. Raises BadRequest, InvalidInput."""
    query, wanted = view.request.query_params, Q()
    if view.caller.is_admin:
        wanted &= _publicity(query.get("is_public"), view.caller.project_id)
    else:
        wanted &= flavors.open_to(view.caller.project_id) & Q(disabled=False)
    for name, column in (("minRam", "memory_mb"), ("minDisk", "disk_gb")):
        if name in query:
            wanted &= Q(**{f"{column}__gte": _least(name, query[name])})
    key, direction = query.get("sort_key") or "flavorid", query.get("sort_dir") or "asc"
    validation.check_query("sort_key", key, {"type": "string", "enum": list(_SORT_KEYS)})
    validation.check_query("sort_dir", direction, {"type": "string", "enum": ["asc", "desc"]})
    sign = "-" if direction == "desc" else ""
    return Flavor.objects.filter(wanted).order_by(f"{sign}{_SORT_KEYS[key]}", f"{sign}id")


def _publicity(asked: str | None, project_id: str) -> Q:
    """Return the filter on publicity for an admin: public and own flavors by default, all with `none`."""
    if asked is None:
        return flavors.open_to(project_id)
    if asked.lower() == "none":
        return Q()
    try:
        validation.check_query("is_public", asked, validation.BOOLEAN)
    except InvalidInput as exc:
        raise BadRequest(f"Invalid is_public filter [{asked}]") from exc
    return flavors.open_to(project_id) if validation.is_true(asked) else Q(is_public=False)


def _least(name: str, asked: str) -> int:
    try:
        return int(asked)
    except ValueError as exc:
        raise BadRequest(f"Invalid {name} filter [{asked}]") from exc


def _creation(version: Version) -> dict[str, Any]:
    described = {"description": _DESCRIPTION} if version >= (2, 55) else {}
    flavor = object_schema(_FIELDS | described, ["name", "ram", "vcpus", "disk"])
    return object_schema({"flavor": flavor}, ["flavor"])


def _create(order: dict[str, Any]) -> Flavor:
    """Store a flavor. Raises Conflict when the name or the id is taken."""
    sizes = {name: parse_int(name, order.get(name, 0), least) for name, least in _SIZES.items()}
    flavor = Flavor(
        flavor_id=str(uuid4() if order.get("id") is None else order["id"]),
        name=order["name"],
        description=order.get("description"),
        vcpus=sizes["vcpus"],
        memory_mb=sizes["ram"],
        disk_gb=sizes["disk"],
        ephemeral_gb=sizes["OS-FLV-EXT-DATA:ephemeral"],
        swap_mb=sizes["swap"],
        rxtx_factor=float(order.get("rxtx_factor", 1.0)),
        is_public=validation.is_true(order.get("os-flavor-access:is_public", True)),
    )
    try:
        with transaction.atomic():
            flavor.save(force_insert=True)
    except IntegrityError as exc:
        if Flavor.objects.filter(name=flavor.name).exists():
            raise Conflict(f"Flavor with name {flavor.name} already exists.") from exc
        raise Conflict(f"Flavor with ID {flavor.flavor_id} already exists.") from exc
    return flavor
