"""/v3/auth: tokens, and the projects and services that a bearer may use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors
from cloud.api_base import body, caller, page
from cloud.identity import catalog, login, roles, tokens
from cloud.identity.api.base import DOMAIN, IdentityView, require, v3
from cloud.identity.api.projects import as_json as project_json
from cloud.identity.authentication import TokenAuthentication
from cloud.identity.models import Project


class TokensView(IdentityView):
    """POST logs in. GET, HEAD and DELETE act on the token in X-Subject-Token."""

    def get_authenticators(self) -> list[Any]:
        """Return none for POST: a client that logs in has no token, or one that may be void."""
        return [] if self.request.method == "POST" else [TokenAuthentication()]

    def get_permissions(self) -> Sequence[Any]:
        """Return none for POST."""
        return [] if self.request.method == "POST" else super().get_permissions()

    def post(self, request: Request) -> Response:
        """Issue a token for a password or for another token."""
        raw = login.log_in(body(request, login.SCHEMA)["auth"])
        return _answer(request, raw, tokens.verify(raw), status=201)

    def get(self, request: Request) -> Response:
        """Show a token: own ones, or any to admins and services."""
        raw, bearer = self._subject(request, "validate_token")
        return _answer(request, raw, bearer)

    def delete(self, request: Request) -> Response:
        """Void a token: own ones, or any by admins."""
        _, bearer = self._subject(request, "revoke_token")
        tokens.revoke(bearer.payload)
        return Response(status=204)

    def _subject(self, request: Request, action: str) -> tuple[str, tokens.Bearer]:
        raw = request.headers.get("X-Subject-Token")
        if not raw:
            raise errors.BadRequest("Expecting to find X-Subject-Token in headers.")
        try:
            bearer = tokens.verify(raw)
        except errors.Unauthorized as exc:
            raise errors.NotFound("Failed to validate token") from exc
        own = bearer.caller.user_id == caller(request).user_id
        service = action == "validate_token" and "service" in caller(request).roles
        require(request, action, unless=own or service)
        return raw, bearer


class CatalogView(IdentityView):
    """GET /v3/auth/catalog."""

    def get(self, request: Request) -> Response:
        """Show the catalog. Only a project-scoped token has one."""
        if not caller(request).project_id:
            raise errors.Forbidden("A project-scoped token is required to produce a service catalog.")
        links = {"next": None, "self": v3("/auth/catalog"), "previous": None}
        return Response({"catalog": catalog.as_json(), "links": links})


class AuthProjectsView(IdentityView):
    """GET /v3/auth/projects."""

    def get(self, request: Request) -> Response:
        """List the projects for which the bearer could get a token."""
        mine = Project.objects.filter(assignments__user=caller(request).user_id, enabled=True).distinct()
        return page(request, mine, "projects", v3("/auth/projects"), project_json)


def _answer(request: Request, raw: str, bearer: tokens.Bearer, status: int = 200) -> Response:
    with_catalog = "nocatalog" not in request.query_params
    response = Response({"token": _token(bearer, with_catalog=with_catalog)}, status=status)
    response["X-Subject-Token"] = raw
    response["Vary"] = "X-Auth-Token"
    return response


def _token(bearer: tokens.Bearer, *, with_catalog: bool) -> dict[str, Any]:
    payload, holder = bearer.payload, bearer.caller
    token: dict[str, Any] = {
        "methods": list(payload.methods),
        "user": {
            "id": holder.user_id, "name": holder.user_name, "domain": DOMAIN, "password_expires_at": None,
        },
        "audit_ids": list(payload.audit_ids),
        "expires_at": _time(payload.expires_at),
        "issued_at": _time(payload.issued_at),
    }  # fmt: skip
    if holder.project_id:
        token["project"] = {"id": holder.project_id, "name": holder.project_name, "domain": DOMAIN}
        token["is_domain"] = False
        held = roles.effective(holder.roles)
        token["roles"] = [{"id": role.id, "name": role.name} for role in held]
        if with_catalog:
            token["catalog"] = catalog.as_json()
    return token


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
