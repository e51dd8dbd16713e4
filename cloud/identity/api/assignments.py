"""/v3/roles, role grants and /v3/role_assignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors, log
from cloud.api_base import is_true
from cloud.identity import roles
from cloud.identity.api.base import DOMAIN, IdentityView, project, require, user, v3
from cloud.identity.models import RoleAssignment

logger = log.get(__name__)


class RolesView(IdentityView):
    """GET /v3/roles. The list is fixed: no role is created or deleted."""

    def get(self, request: Request) -> Response:
        """List roles; filter: `name`."""
        require(request, "list_roles")
        query = request.query_params
        found = [role for role in roles.ROLES.values() if query.get("name", role.name) == role.name]
        if query.get("domain_id"):  # roles of a domain: there are none
            found = []
        return _listing("roles", v3("/roles"), [as_json(role) for role in found])


class RoleView(IdentityView):
    """GET /v3/roles/{id}."""

    def get(self, request: Request, role_id: str) -> Response:
        """Show one role."""
        require(request, "get_role")
        return Response({"role": as_json(_role(role_id))})


class GrantsView(IdentityView):
    """GET /v3/projects/{project}/users/{user}/roles."""

    def get(self, request: Request, project_id: str, user_id: str) -> Response:
        """List the roles of a user in a project."""
        require(request, "list_grants")
        held = RoleAssignment.objects.filter(project=project(project_id), user=user(user_id)).order_by("role")
        url = v3(f"/projects/{project_id}/users/{user_id}/roles")
        return _listing("roles", url, [as_json(roles.ROLES[one.role]) for one in held])


class GrantView(IdentityView):
    """/v3/projects/{project}/users/{user}/roles/{role}."""

    def put(self, request: Request, project_id: str, user_id: str, role_id: str) -> Response:
        """Grant a role. Idempotent."""
        require(request, "create_grant")
        role = _role(role_id)
        RoleAssignment.objects.get_or_create(project=project(project_id), user=user(user_id), role=role.name)
        logger.info("role.granted", project=project_id, user=user_id, role=role.name)
        return Response(status=204)

    def get(self, request: Request, project_id: str, user_id: str, role_id: str) -> Response:
        """Answer 204 when the user has the role, else 404."""
        require(request, "check_grant")
        self._grant(project_id, user_id, role_id)
        return Response(status=204)

    def delete(self, request: Request, project_id: str, user_id: str, role_id: str) -> Response:
        """Revoke a role."""
        require(request, "revoke_grant")
        self._grant(project_id, user_id, role_id).delete()
        logger.info("role.revoked", project=project_id, user=user_id, role=role_id)
        return Response(status=204)

    def _grant(self, project_id: str, user_id: str, role_id: str) -> RoleAssignment:
        role = _role(role_id)
        found = RoleAssignment.objects.filter(project=project_id, user=user_id, role=role.name).first()
        if found is None:
            raise errors.NotFound(
                f"Could not find role assignment with role: {role_id}, user or group: {user_id}, "
                f"project, domain, or system: {project_id}."
            )
        return found


class RoleAssignmentsView(IdentityView):
    """GET /v3/role_assignments."""

    def get(self, request: Request) -> Response:
        """List role assignments; `effective` adds the roles that they imply."""
        require(request, "list_role_assignments")
        query = request.query_params
        found = RoleAssignment.objects.select_related("user", "project").order_by("pk")
        if "user.id" in query:
            found = found.filter(user=query["user.id"])
        if "scope.project.id" in query:
            found = found.filter(project=query["scope.project.id"])
        if any(key in query for key in ("group.id", "scope.domain.id", "scope.system")):
            found = found.none()
        names = is_true(query.get("include_names"))
        entries = [
            _entry(one, role, names=names)
            for one, role in _expanded(found, effective=is_true(query.get("effective")))
            if query.get("role.id", role.id) == role.id
        ]
        return _listing("role_assignments", v3("/role_assignments"), entries)


def as_json(role: roles.Role) -> dict[str, Any]:
    """Return Keystone's view of a role."""
    return {
        "id": role.id, "name": role.name, "domain_id": None, "description": None, "options": {},
        "links": {"self": v3(f"/roles/{role.id}")},
    }  # fmt: skip


def _listing(key: str, url: str, entries: list[dict[str, Any]]) -> Response:
    return Response({key: entries, "links": {"next": None, "self": url, "previous": None}})


def _role(role_id: str) -> roles.Role:
    found = roles.by_id(role_id)
    if found is None:
        raise errors.NotFound(f"Could not find role: {role_id}.")
    return found


def _expanded(found: Any, *, effective: bool) -> Iterator[tuple[RoleAssignment, roles.Role]]:
    for one in found:
        for role in roles.effective(frozenset({one.role})) if effective else [roles.ROLES[one.role]]:
            yield one, role


def _entry(one: RoleAssignment, role: roles.Role, *, names: bool) -> dict[str, Any]:
    grant = v3(f"/projects/{one.project_id}/users/{one.user_id}/roles/{role.id}")
    entry: dict[str, Any] = {
        "role": {"id": role.id},
        "user": {"id": one.user_id},
        "scope": {"project": {"id": one.project_id}},
        "links": {"assignment": grant},
    }
    if names:
        entry["role"]["name"] = role.name
        entry["user"] |= {"name": one.user.name, "domain": DOMAIN}
        entry["scope"]["project"] |= {"name": one.project.name, "domain": DOMAIN}
    return entry
