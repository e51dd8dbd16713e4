"""os-aggregates: groups of hosts with metadata. An aggregate may define an availability zone."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from cells.models import HostMapping
from cloud.errors import BadRequest, Conflict, NotFound
from compute.api.base import ComputeView
from compute.api.fields import moment, object_schema
from compute.contract import validation
from compute.contract.microversion import Version
from compute.hosts import zone_change
from compute.models import Aggregate, AggregateHost
from compute.placement.aggregates import ZONE

RULE = "os_compute_api:os-aggregates:"
_ZONE = {"type": ["string", "null"], "minLength": 1, "maxLength": 255, "pattern": r"^[^:]*\Z"}
_CREATE = object_schema({"aggregate": object_schema({"name": validation.NAME, ZONE: _ZONE}, ["name"])}, ["aggregate"])
_UPDATE = object_schema(
    {"aggregate": {**object_schema({"name": validation.NAME, ZONE: _ZONE}), "minProperties": 1}}, ["aggregate"]
)
_HOST = object_schema({"host": {"type": "string", "minLength": 1, "maxLength": 255}}, ["host"])
_VALUES = {r"^[a-zA-Z0-9-_:. ]{1,255}\Z": {"type": ["string", "null"], "maxLength": 255}}
_METADATA = object_schema(
    {"metadata": {"type": "object", "patternProperties": _VALUES, "additionalProperties": False}}, ["metadata"]
)


class AggregatesView(ComputeView):
    """GET and POST /os-aggregates."""

    def get(self, request: Request) -> Response:
        """List all aggregates, in two queries."""
        self.check(f"{RULE}index")
        found = Aggregate.objects.prefetch_related("hosts")
        return Response({"aggregates": [_as_json(one, self.version) for one in found]})

    def post(self, request: Request) -> Response:
        """Create an aggregate without hosts. The answer has no `hosts` and `metadata`, as Nova's. Raises Conflict."""
        self.check(f"{RULE}create")
        order = validation.check(request.data, _CREATE)["aggregate"]
        metadata = {ZONE: order[ZONE]} if order.get(ZONE) else {}
        try:
            with transaction.atomic(using="default"):
                made = Aggregate.objects.create(name=order["name"], metadata=metadata)
        except IntegrityError as exc:
            raise _taken(order["name"]) from exc
        shown = _as_json(made, self.version)
        return Response({"aggregate": {key: shown[key] for key in shown if key not in ("hosts", "metadata")}})


class AggregateView(ComputeView):
    """GET, PUT and DELETE /os-aggregates/{id}."""

    def get(self, request: Request, aggregate_id: str) -> Response:
        """Show an aggregate with its hosts and metadata."""
        self.check(f"{RULE}show")
        return Response({"aggregate": _as_json(_find(aggregate_id), self.version)})

    def put(self, request: Request, aggregate_id: str) -> Response:
        """Change the name, the availability zone, or both. Raises Conflict, BadRequest, CellDown."""
        self.check(f"{RULE}update")
        order = validation.check(request.data, _UPDATE)["aggregate"]
        try:
            with transaction.atomic(using="default"):
                found = _find(aggregate_id, lock=True)
                if ZONE in order:
                    _change_metadata(found, {ZONE: order[ZONE]}, "update aggregate")
                found.name, found.updated_at = order.get("name", found.name), timezone.now()
                found.save()
        except IntegrityError as exc:
            raise _taken(order["name"]) from exc
        return Response({"aggregate": _as_json(found, self.version)})

    def delete(self, request: Request, aggregate_id: str) -> Response:
        """Delete an aggregate. Raises BadRequest while it has hosts."""
        self.check(f"{RULE}delete")
        with transaction.atomic(using="default"):
            found = _find(aggregate_id, lock=True)
            if found.hosts.exists():
                raise BadRequest(
                    f"Cannot remove host aggregate {found.pk}. Reason: Host aggregate is not empty."
                )
            found.delete()
        return Response(status=200)


class AggregateActionView(ComputeView):
    """POST /os-aggregates/{id}/action: add_host, remove_host, set_metadata."""

    def post(self, request: Request, aggregate_id: str) -> Response:
        """Carry out the action that the single key of the body names."""
        body = self.body()
        if len(body) != 1:
            raise BadRequest("Malformed request body")
        (key, order), = body.items()
        if key not in _ACTIONS:
            raise BadRequest(f"There is no such action: {key}")
        self.check(f"{RULE}{key}")
        shape, act = _ACTIONS[key]
        validation.check(order, shape)
        with transaction.atomic(using="default"):
            found = _find(aggregate_id, lock=True)
            act(found, order)
            found.updated_at = timezone.now()
            found.save()
        return Response({"aggregate": _as_json(found, self.version)})


def _add_host(aggregate: Aggregate, order: dict[str, Any]) -> None:
    """Raise NotFound, Conflict, CellDown."""
    host = order["host"]
    if not HostMapping.objects.filter(host=host).exists():
        raise NotFound(f"Compute host {host} could not be found.")
    if aggregate.hosts.filter(host=host).exists():
        raise Conflict(f"Aggregate {aggregate.pk} already has host {host}.")
    with zone_change.checked([host], f"Cannot add host to aggregate {aggregate.pk}.", Conflict):
        AggregateHost.objects.create(aggregate=aggregate, host=host)


def _remove_host(aggregate: Aggregate, order: dict[str, Any]) -> None:
    """Raise NotFound, Conflict, CellDown."""
    host = order["host"]
    with zone_change.checked([host], f"Cannot remove host from aggregate {aggregate.pk}.", Conflict):
        if not aggregate.hosts.filter(host=host).delete()[0]:
            raise NotFound(f"Aggregate {aggregate.pk} has no host {host}.")


def _set_metadata(aggregate: Aggregate, order: dict[str, Any]) -> None:
    _change_metadata(aggregate, order["metadata"], "update aggregate metadata of")


def _change_metadata(aggregate: Aggregate, wanted: dict[str, str | None], doing: str) -> None:
    """Set keys; a null removes a key. Raises BadRequest, CellDown."""
    if ZONE in wanted and not wanted[ZONE]:
        raise BadRequest(
            f"Cannot {doing} {aggregate.pk}. Reason: Aggregate {aggregate.pk} does not support empty named "
            "availability zone."
        )
    metadata = {key: value for key, value in {**aggregate.metadata, **wanted}.items() if value is not None}
    hosts = [one.host for one in aggregate.hosts.all()]
    with zone_change.checked(hosts, f"Cannot {doing} {aggregate.pk}.", BadRequest):
        aggregate.metadata = metadata
        aggregate.save(update_fields=["metadata"])


_ACTIONS = {
    "add_host": (_HOST, _add_host), "remove_host": (_HOST, _remove_host), "set_metadata": (_METADATA, _set_metadata),
}  # fmt: skip


def _find(aggregate_id: str, *, lock: bool = False) -> Aggregate:
    """Return an aggregate. Raises BadRequest when the id is not a number, NotFound."""
    if not aggregate_id.isascii() or not aggregate_id.isdigit():
        raise BadRequest("Invalid input received: id must be an integer")
    rows = Aggregate.objects.select_for_update(of=("self",)) if lock else Aggregate.objects.all()
    found = rows.filter(pk=int(aggregate_id)).first() if len(aggregate_id) < 19 else None
    if found is None:
        raise NotFound(f"Aggregate {aggregate_id} could not be found.")
    return found


def _taken(name: str) -> Conflict:
    return Conflict(f"Aggregate {name} already exists.")


def _as_json(aggregate: Aggregate, version: Version) -> dict[str, Any]:
    shown = {
        "id": aggregate.pk,
        "name": aggregate.name,
        ZONE: aggregate.metadata.get(ZONE),
        "hosts": sorted(one.host for one in aggregate.hosts.all()),
        "metadata": aggregate.metadata,
        "created_at": moment(aggregate.created_at),
        "updated_at": moment(aggregate.updated_at),
        "deleted": False,
        "deleted_at": None,
    }
    return shown | ({"uuid": aggregate.uuid} if version >= (2, 41) else {})
