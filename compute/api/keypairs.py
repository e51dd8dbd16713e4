"""os-keypairs: the SSH and X.509 key pairs of a user."""

from __future__ import annotations

import string
from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import Conflict, NotFound
from compute.api import paging
from compute.api.base import ComputeView
from compute.api.fields import check_query_keys, moment, object_schema
from compute.contract import validation
from compute.contract.microversion import Version
from compute.models import KeyPair
from compute.placement import quota
from compute.servers import keypairs
from compute.servers.keypairs import InvalidKeypair

RULE = "os_compute_api:os-keypairs:"
_SAFE = set("_- " + string.ascii_letters + string.digits)


class KeyPairsView(ComputeView):
    """GET and POST /os-keypairs."""

    def get(self, request: Request) -> Response:
        """List the caller's key pairs; since 2.10 those of any user for an admin; since 2.35 by page."""
        check_query_keys(self, "user_id", "limit", "marker")
        user_id = _asked_user(self)
        self.check(f"{RULE}index", user_id=user_id)
        found = list(KeyPair.objects.filter(user_id=user_id))
        shown = found if self.version < (2, 35) else paging.page(found, request, "name")
        answer: dict[str, Any] = {"keypairs": [{"keypair": as_json(one, self.version)} for one in shown]}
        if self.version >= (2, 35) and shown:
            more = paging.next_link(request, "/os-keypairs", len(shown), shown[-1].name)
            if more:
                answer["keypairs_links"] = more
        return Response(answer)

    def post(self, request: Request) -> Response:
        """Import a public key or, before 2.92, generate a pair and return its private key this one time."""
        order = validation.check(request.data, _creation(self.version))["keypair"]
        user_id = order.get("user_id") or self.caller.user_id
        self.check(f"{RULE}create", user_id=user_id)
        kind, name = order.get("type", "ssh"), order["name"]
        _check_name(name, self.version)
        quota.check_keypairs(self.caller.project_id, user_id)
        made = None if "public_key" in order else keypairs.make(kind, user_id)
        pair = _create(user_id, name, kind, made.public if made else order["public_key"])
        shown = as_json(pair, self.version) | {"user_id": user_id}
        if made:
            shown["private_key"] = made.private
        return Response({"keypair": shown}, status=200 if self.version < (2, 2) else 201)


class KeyPairView(ComputeView):
    """GET and DELETE /os-keypairs/{name}."""

    def get(self, request: Request, name: str) -> Response:
        """Show a key pair with its times."""
        check_query_keys(self, "user_id")
        user_id = _asked_user(self)
        self.check(f"{RULE}show", user_id=user_id)
        pair = KeyPair.objects.filter(user_id=user_id, name=name).first()
        if pair is None:
            raise _unknown(name, user_id)
        shown = as_json(pair, self.version) | {
            "user_id": user_id, "id": pair.pk, "created_at": moment(pair.created_at),
            "updated_at": moment(pair.updated_at), "deleted": False, "deleted_at": None,
        }  # fmt: skip
        return Response({"keypair": shown})

    def delete(self, request: Request, name: str) -> Response:
        """Delete a key pair. Servers keep the key they were created with."""
        check_query_keys(self, "user_id")
        user_id = _asked_user(self)
        self.check(f"{RULE}delete", user_id=user_id)
        removed, _ = KeyPair.objects.filter(user_id=user_id, name=name).delete()
        if not removed:
            raise _unknown(name, user_id)
        return Response(status=202 if self.version < (2, 2) else 204)


def as_json(pair: KeyPair, version: Version) -> dict[str, Any]:
    """Return the fields that every answer has."""
    shown = {"name": pair.name, "public_key": pair.public_key, "fingerprint": pair.fingerprint}
    return {**shown, "type": pair.type} if version >= (2, 2) else shown


def _asked_user(view: ComputeView) -> str:
    """Return the user whose key pairs the request is about."""
    asked = view.request.query_params.get("user_id") if view.version >= (2, 10) else None
    return asked or view.caller.user_id


def _unknown(name: str, user_id: str) -> NotFound:
    return NotFound(f"Keypair {name} not found for user {user_id}")


def _creation(version: Version) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": {"type": "string", "minLength": 1, "maxLength": 255},
        "public_key": {"type": "string"},
    }
    if version >= (2, 2):
        fields["type"] = {"type": "string", "enum": ["ssh", "x509"]}
    if version >= (2, 10):
        fields["user_id"] = {"type": "string"}
    required = ["name", "public_key"] if version >= (2, 92) else ["name"]
    return object_schema({"keypair": object_schema(fields, required)}, ["keypair"])


def _check_name(name: str, version: Version) -> None:
    """Raise InvalidKeypair for unsafe characters. Since 2.92 `@` and `.` are safe too."""
    if not set(name) <= (_SAFE | {"@", "."} if version >= (2, 92) else _SAFE):
        raise InvalidKeypair("Keypair name contains unsafe characters")


def _create(user_id: str, name: str, kind: str, public_key: str) -> KeyPair:
    """Store a key pair. Raises InvalidKeypair, and Conflict when the user has one with that name."""
    fingerprint = keypairs.fingerprint(public_key, kind)
    try:
        with transaction.atomic():
            return KeyPair.objects.create(
                user_id=user_id, name=name, type=kind, public_key=public_key, fingerprint=fingerprint
            )
    except IntegrityError as exc:
        raise Conflict(f"Key pair '{name}' already exists.") from exc
