"""/servers/{id}/metadata, /tags and /ips."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.db import transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from cells.context import current_alias
from cloud.errors import BadRequest, Conflict, NotFound
from compute.api.base import ComputeView, link
from compute.contract import validation
from compute.errors import ServerLocked
from compute.models import Instance
from compute.placement import quota
from compute.servers import lookup, references
from compute.shutdown import options
from compute.state import VmState

_CHANGEABLE = {VmState.ACTIVE, VmState.PAUSED, VmState.SUSPENDED, VmState.STOPPED}


def change(instance: Instance, **columns: Any) -> None:
    """Write columns of a server that are not part of its state."""
    Instance.objects.filter(pk=instance.pk).update(**columns, updated_at=timezone.now())


def locked_row(instance: Instance) -> Instance:
    """Return the row, locked until the caller's transaction ends: read, change and write must be one unit."""
    return Instance.objects.select_for_update().get(pk=instance.pk)


class MetadataView(ComputeView):
    """GET, POST and PUT /servers/{id}/metadata."""

    def get(self, request: Request, server_id: str) -> Response:
        """Return all metadata."""
        instance = _read(self, server_id, "server-metadata:index")
        return Response({"metadata": instance.metadata})

    def post(self, request: Request, server_id: str) -> Response:
        """Add keys, and replace keys that exist."""
        return self._write(server_id, "create", merge=True)

    def put(self, request: Request, server_id: str) -> Response:
        """Replace all metadata."""
        return self._write(server_id, "update_all", merge=False)

    def _write(self, server_id: str, rule: str, *, merge: bool) -> Response:
        new = validation.check(self.body(), _object("metadata", references.METADATA))["metadata"]
        with lookup.server(server_id, self.caller) as instance:
            self.check(f"os_compute_api:server-metadata:{rule}", instance.project_id)
            return Response({"metadata": replace(self, instance, new, merge=merge)})


class MetadataItemView(ComputeView):
    """GET, PUT and DELETE /servers/{id}/metadata/{key}."""

    def get(self, request: Request, server_id: str, key: str) -> Response:
        """Return one key."""
        instance = _read(self, server_id, "server-metadata:show")
        return Response({"meta": {key: _item(instance, key)}})

    def put(self, request: Request, server_id: str, key: str) -> Response:
        """Set one key."""
        one = {**references.METADATA, "minProperties": 1, "maxProperties": 1}
        new = validation.check(self.body(), _object("meta", one))
        if key not in new["meta"]:
            raise BadRequest("Request body and URI mismatch")
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:server-metadata:update", instance.project_id)
            replace(self, instance, new["meta"], merge=True)
            return Response({"meta": {key: new["meta"][key]}})

    def delete(self, request: Request, server_id: str, key: str) -> Response:
        """Remove one key."""
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:server-metadata:delete", instance.project_id)
            _refuse(self, instance, "delete metadata")
            with transaction.atomic(using=current_alias()):
                row = locked_row(instance)
                _item(row, key)
                change(row, metadata={k: v for k, v in row.metadata.items() if k != key})
            return Response(status=204)


class TagsView(ComputeView):
    """GET, PUT and DELETE /servers/{id}/tags."""

    since = (2, 26)

    def get(self, request: Request, server_id: str) -> Response:
        """Return all tags."""
        instance = _read(self, server_id, "os-server-tags:index")
        return Response({"tags": instance.tag_list})

    def put(self, request: Request, server_id: str) -> Response:
        """Replace all tags."""
        tags = validation.check(self.body(), _object("tags", TAGS))["tags"]
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:os-server-tags:update_all", instance.project_id)
            _refuse_state(instance, "update tags")
            change(instance, tags=Instance.join_tags(list(dict.fromkeys(tags))))
            return Response({"tags": list(dict.fromkeys(tags))})

    def delete(self, request: Request, server_id: str) -> Response:
        """Remove all tags."""
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:os-server-tags:delete_all", instance.project_id)
            _refuse_state(instance, "delete tags")
            change(instance, tags="")
            return Response(status=204)


class TagView(ComputeView):
    """GET, PUT and DELETE /servers/{id}/tags/{tag}."""

    since = (2, 26)

    def get(self, request: Request, server_id: str, tag: str) -> Response:
        """Answer 204 when the server has the tag, else 404."""
        instance = _read(self, server_id, "os-server-tags:show")
        if tag not in instance.tag_list:
            raise NotFound(f"Server {server_id} has no tag '{tag}'")
        return Response(status=204)

    def put(self, request: Request, server_id: str, tag: str) -> Response:
        """Add the tag. Answers 201 when it is new, else 204."""
        validation.check({"tag": tag}, {"properties": {"tag": validation.TAG}})
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:os-server-tags:update", instance.project_id)
            _refuse_state(instance, "update tags")
            with transaction.atomic(using=current_alias()):
                row = locked_row(instance)
                if tag in row.tag_list:
                    return Response(status=204)
                if len(row.tag_list) >= MAX_TAGS:
                    raise BadRequest(f"The number of tags exceeded the per-server limit {MAX_TAGS}")
                change(row, tags=Instance.join_tags([*row.tag_list, tag]))
            return Response(status=201, headers={"Location": link(f"/servers/{server_id}/tags/{quote(tag)}")})

    def delete(self, request: Request, server_id: str, tag: str) -> Response:
        """Remove the tag. Answers 404 when the server does not have it."""
        with lookup.server(server_id, self.caller) as instance:
            self.check("os_compute_api:os-server-tags:delete", instance.project_id)
            _refuse_state(instance, "delete tags")
            with transaction.atomic(using=current_alias()):
                row = locked_row(instance)
                if tag not in row.tag_list:
                    raise NotFound(f"Server {server_id} has no tag '{tag}'")
                change(row, tags=Instance.join_tags([t for t in row.tag_list if t != tag]))
            return Response(status=204)


class AddressesView(ComputeView):
    """GET /servers/{id}/ips and …/ips/{label}."""

    def get(self, request: Request, server_id: str, label: str | None = None) -> Response:
        """Return the addresses, without their extended attributes, as Nova does."""
        instance = _read(self, server_id, "ips:index" if label is None else "ips:show")
        shown = {
            name: [{"version": a["version"], "addr": a["addr"]} for a in listed]
            for name, listed in instance.addresses.items()
        }
        if label is None:
            return Response({"addresses": shown})
        if label not in shown:
            raise NotFound("Instance is not a member of specified network")
        return Response({label: shown[label]})


MAX_TAGS = 50
TAGS = {"type": "array", "items": validation.TAG, "maxItems": MAX_TAGS}


def replace(view: ComputeView, instance: Instance, new: dict[str, str], *, merge: bool) -> dict[str, str]:
    """Write metadata, merged into the old or instead of it, and return it. Raises Conflict, ServerLocked, Forbidden."""
    _refuse(view, instance, "update metadata")
    with transaction.atomic(using=current_alias()):
        row = locked_row(instance)
        whole = {**row.metadata, **new} if merge else new
        quota.check_metadata(row.project_id, whole)
        change(row, metadata=whole)
    return whole


def with_shutdown_preferences(view: ComputeView, instance: Instance, body: dict[str, Any]) -> dict[str, str]:
    """Return the metadata with the shutdown preferences of an update's body.

    It locks the row: call it in the transaction that writes the metadata. Works in every state, ERROR included.
    Raises ServerLocked, Forbidden (quota).
    """
    if instance.locked_by and not view.caller.is_admin:
        raise ServerLocked(instance.uuid)
    row = locked_row(instance)
    whole = options.written_on(row.metadata, body)
    if len(whole) > len(row.metadata):
        quota.check_metadata(row.project_id, whole)
    return whole


def _read(view: ComputeView, server_id: str, rule: str) -> Instance:
    instance = lookup.readable(server_id, view.caller)
    view.check(f"os_compute_api:{rule}", instance.project_id)
    return instance


def _refuse(view: ComputeView, instance: Instance, what: str) -> None:
    if instance.locked_by and not view.caller.is_admin:
        raise ServerLocked(instance.uuid)
    _refuse_state(instance, what)


def _refuse_state(instance: Instance, what: str) -> None:
    if instance.vm_state not in _CHANGEABLE:
        raise Conflict(f"Cannot '{what}' instance {instance.uuid} while it is in vm_state {instance.vm_state}")


def _item(instance: Instance, key: str) -> str:
    if key not in instance.metadata:
        raise NotFound("Metadata item was not found")
    return str(instance.metadata[key])


def _object(key: str, inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {key: inner}, "required": [key], "additionalProperties": False}
