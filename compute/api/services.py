"""os-services: the services of all cells. The operator enables, disables, forces down, drains and deletes them here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, ProtectedError
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from cells.models import HostMapping
from cloud.errors import BadRequest, Conflict, NotFound
from cloud.words import counted
from compute.api import service_drain
from compute.api.base import ComputeView
from compute.api.fields import check_query_keys, moment, object_schema
from compute.contract import validation
from compute.contract.microversion import Version
from compute.errors import CellDown
from compute.hosts import fenced, services
from compute.hosts.services import ServiceRecord
from compute.models import AggregateHost, ComputeNode, DrainMigration, Instance, Service
from compute.models.host import COMPUTE
from compute.servers import lookup

_REASON = {"type": "string", "minLength": 1, "maxLength": 255}
_HOST = {"type": "string", "minLength": 1, "maxLength": 255}
_NAME = {"host": _HOST, "binary": _HOST}
BY_NAME = object_schema(_NAME, _NAME)
WITH_REASON = object_schema({**_NAME, "disabled_reason": _REASON}, [*_NAME, "disabled_reason"])
WITH_FORCED_DOWN = object_schema({**_NAME, "forced_down": validation.BOOLEAN}, [*_NAME, "forced_down"])
BY_ID = object_schema(
    {
        "status": {"type": "string", "enum": ["enabled", "disabled"]},
        "disabled_reason": _REASON,
        "forced_down": validation.BOOLEAN,
        service_drain.KEY: service_drain.SCHEMA,
    }
)
_ACTIONS = {
    "enable": BY_NAME, "disable": BY_NAME, "disable-log-reason": WITH_REASON, "force-down": WITH_FORCED_DOWN,
}  # fmt: skip


class ServicesView(ComputeView):
    """GET /os-services."""

    def get(self, request: Request) -> Response:
        """List the services of all cells; since 2.69 the compute hosts of a down cell as UNKNOWN."""
        self.check("os_compute_api:os-services:list")
        check_query_keys(self, "host", "binary")
        host, binary = request.query_params.get("host", ""), request.query_params.get("binary", "")
        seen = services.services(host, binary)
        listed = [as_json(one, self.version) for one in seen.found]
        if self.version >= (2, 69) and binary in ("", COMPUTE) and seen.down:
            listed += [
                {"binary": COMPUTE, "host": name, "status": "UNKNOWN"}
                for name in services.hosts_of(seen.down) if host in ("", name)
            ]  # fmt: skip
        return Response({"services": listed})


class ServiceView(ComputeView):
    """PUT and DELETE /os-services/{id}; before 2.53 the path of PUT names an action instead."""

    def put(self, request: Request, service_id: str) -> Response:
        """Enable, disable or force down a nova-compute service; drain a service of any kind (Stillwater's own key)."""
        self.check("os_compute_api:os-services:update")
        if self.version < (2, 53):
            return Response({"service": _act(service_id, request.data, self.version)})
        body = validation.check(request.data, BY_ID)
        found = _by_id(service_id, self.version)
        wanted = {} if set(body) == {service_drain.KEY} else _wanted(body, found.service.binary)
        if service_drain.KEY in body:
            by = f"api:{self.caller.user_name or self.caller.user_id}"
            found = service_drain.carry_out(found, body[service_drain.KEY], by)
        if wanted:
            _change(found, wanted)
        return Response({"service": as_json(found, self.version)})

    def delete(self, request: Request, service_id: str) -> Response:
        """Delete a service; for a compute host also its nodes, its host mapping and its aggregate memberships."""
        self.check("os_compute_api:os-services:delete")
        found = _by_id(service_id, self.version)
        _remove(found)
        if found.service.binary == COMPUTE:
            HostMapping.objects.filter(host=found.service.host, cell=found.cell).delete()
            AggregateHost.objects.filter(host=found.service.host).delete()
        return Response(status=204)


def as_json(one: ServiceRecord, version: Version) -> dict[str, Any]:
    """Return a service as a microversion shows it."""
    service = one.service
    moments = [when for when in (service.last_seen_up, service.updated_at) if when]
    shown = {
        "binary": service.binary,
        "host": service.host,
        "id": service.uuid if version >= (2, 53) else services.number(service.uuid),
        "zone": one.zone,
        "status": "disabled" if service.disabled else "enabled",
        "state": "up" if service.is_up else "down",
        "updated_at": moment(max(moments, default=None)),
        "disabled_reason": service_drain.reason(service),
    }
    if version >= (2, 11):
        shown["forced_down"] = service.forced_down
    return shown | service_drain.as_json(one)


def _by_id(service_id: str, version: Version) -> ServiceRecord:
    """Return a service. Raises BadRequest for an invalid id, NotFound, CellDown when it may be in a down cell."""
    if version >= (2, 53):
        try:
            UUID(service_id)
        except ValueError as exc:
            raise BadRequest(f"Invalid uuid {service_id}") from exc
    seen = services.services()
    for one in seen.found:
        if service_id == (one.service.uuid if version >= (2, 53) else str(services.number(one.service.uuid))):
            return one
    if seen.down:
        raise CellDown(seen.down[0].name)
    raise NotFound(f"Compute service {service_id} could not be found.")


def _by_name(host: str, binary: str) -> ServiceRecord:
    """Return a service. Raises NotFound, CellDown when it may be in a down cell."""
    seen = services.services(host, binary)
    if seen.found:
        return seen.found[0]
    if seen.down:
        raise CellDown(seen.down[0].name)
    raise NotFound(f"Could not find binary {binary} on host {host}.")


def _act(action: str, body: Any, version: Version) -> dict[str, Any]:
    """Carry out a PUT before 2.53: the path names the action, the body names the service."""
    if action not in _ACTIONS or (action == "force-down" and version < (2, 11)):
        raise NotFound("Unknown action")
    order = validation.check(body, _ACTIONS[action])
    found = _by_name(order["host"], order["binary"])
    answer = {"host": order["host"], "binary": order["binary"]}
    if action == "force-down":
        forced = validation.is_true(order["forced_down"])
        _change(found, {"forced_down": forced})
        return {**answer, "forced_down": forced}
    disabled, reason = action != "enable", order.get("disabled_reason")
    _change(found, {"disabled": disabled, "disabled_reason": reason})
    answer["status"] = "disabled" if disabled else "enabled"
    return {**answer, "disabled_reason": reason} if reason else answer


def _wanted(body: dict[str, Any], binary: str) -> dict[str, Any]:
    """Return the columns a PUT since 2.53 changes. Raises BadRequest."""
    if binary != COMPUTE:
        raise BadRequest(
            f"Updating a {binary} service is not supported. Only nova-compute services can be updated."
        )
    wanted: dict[str, Any] = {}
    if "status" in body:
        disabled = body["status"] == "disabled"
        if not disabled and "disabled_reason" in body:
            raise BadRequest("Specifying 'disabled_reason' with status 'enabled' is invalid.")
        wanted |= {"disabled": disabled, "disabled_reason": body.get("disabled_reason")}
    if "forced_down" in body:
        wanted["forced_down"] = validation.is_true(body["forced_down"])
    if not wanted:
        raise BadRequest("No updates were requested. Fields 'status' or 'forced_down' should be specified.")
    return wanted


def _change(one: ServiceRecord, wanted: dict[str, Any]) -> None:
    """Write only the requested columns: the heartbeat writes the rest of the row.

    Raises BadRequest when the host still owes cleanups, CellDown.
    """
    wanted = {**wanted, "updated_at": timezone.now()}
    with lookup.targeted_cell(one.cell):
        if wanted.get("forced_down") is False and (owed := fenced.pending_cleanups(one.service.host)):
            raise BadRequest(
                f"Host {one.service.host} still has to remove what it has of {counted(owed, 'server')} evacuated or "
                "deleted meanwhile. It does so when its nova-compute is started; then it can be forced up."
            )
        if wanted.get("forced_down"):
            wanted["seen_when_forced"] = F("last_seen_up")
        Service.objects.filter(pk=one.service.pk).update(**wanted)
        one.service.refresh_from_db(fields=list(wanted))


def _remove(one: ServiceRecord) -> None:
    """Delete a service and what belongs to it in its cell. Raises CellDown, and Conflict while a server is
    on the host or being placed there.
    """
    with lookup.targeted_cell(one.cell):
        try:
            with transaction.atomic(using=one.cell.alias):
                if one.service.binary == COMPUTE:
                    if Instance.objects.living(host=one.service.host).exists():
                        raise _hosts_servers()
                    ComputeNode.objects.filter(host=one.service.host).delete()
                    fenced.cancel_cleanups(one.service.host)
                    DrainMigration.objects.filter(host=one.service.host).delete()
                Service.objects.filter(pk=one.service.pk).delete()
        except (ProtectedError, IntegrityError) as exc:  # an allocation on one of its nodes
            raise _hosts_servers() from exc


def _hosts_servers() -> Conflict:
    return Conflict(
        "Unable to delete compute service that is hosting instances. Migrate or delete the instances first."
    )
