"""/v3/projects."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors, log
from cloud.api_base import body, caller, is_true, page
from cloud.identity.api.base import NAME_PATTERN, IdentityView, default_domain_only, project, require, v3
from cloud.identity.models import DOMAIN_ID, Project, RoleAssignment

logger = log.get(__name__)
_FIELDS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 64, "pattern": NAME_PATTERN},
    "description": {"type": ["string", "null"], "maxLength": 10000},
    "enabled": {"type": "boolean"},
    "domain_id": {"type": ["string", "null"]},
    "parent_id": {"type": ["string", "null"]},
    "is_domain": {"const": False},
}


def _schema(*required: str) -> dict[str, Any]:
    fields = {"type": "object", "properties": _FIELDS, "required": list(required)}
    return {"type": "object", "required": ["project"], "properties": {"project": fields}}


CREATE, UPDATE = _schema("name"), _schema()


class ProjectsView(IdentityView):
    """The collection of projects."""

    def get(self, request: Request) -> Response:
        """List projects; filters: `name`, `enabled`, `domain_id`, `is_domain`."""
        require(request, "list_projects")
        found = Project.objects.all()
        query = request.query_params
        if "name" in query:
            found = found.filter(name=query["name"])
        if "enabled" in query:
            found = found.filter(enabled=is_true(query["enabled"]))
        if query.get("domain_id", DOMAIN_ID) != DOMAIN_ID or is_true(query.get("is_domain")):
            found = found.none()
        return page(request, found, "projects", v3("/projects"), as_json)

    def post(self, request: Request) -> Response:
        """Create a project. Raises Conflict when the name is taken."""
        require(request, "create_project")
        made = _write(Project(), body(request, CREATE)["project"])
        logger.info("project.created", project=made.id)
        return Response({"project": as_json(made)}, status=201)


class ProjectView(IdentityView):
    """One project."""

    def get(self, request: Request, project_id: str) -> Response:
        """Show a project: any to admins, to others those in which they have a role."""
        mine = RoleAssignment.objects.filter(user=caller(request).user_id, project=project_id)
        require(request, "get_project", unless=not caller(request).is_admin and mine.exists())
        return Response({"project": as_json(project(project_id))})

    def patch(self, request: Request, project_id: str) -> Response:
        """Change name, description or enabled."""
        require(request, "update_project")
        changed = _write(project(project_id), body(request, UPDATE)["project"])
        return Response({"project": as_json(changed)})

    def delete(self, request: Request, project_id: str) -> Response:
        """Delete a project with the roles in it; tokens for it are void."""
        require(request, "delete_project")
        project(project_id).delete()
        logger.info("project.deleted", project=project_id)
        return Response(status=204)


def as_json(record: Project) -> dict[str, Any]:
    """Return Keystone's view of a project."""
    return {
        "id": record.id, "name": record.name, "description": record.description, "enabled": record.enabled,
        "domain_id": DOMAIN_ID, "parent_id": DOMAIN_ID, "is_domain": False, "tags": [], "options": {},
        "links": {"self": v3(f"/projects/{record.id}")},
    }  # fmt: skip


def _write(record: Project, fields: dict[str, Any]) -> Project:
    default_domain_only(fields)
    record.name = fields.get("name", record.name)
    record.description = fields.get("description", record.description) or ""
    record.enabled = fields.get("enabled", record.enabled)
    try:
        with transaction.atomic():
            record.save()
    except IntegrityError as exc:
        raise errors.Conflict(
            "Conflict occurred attempting to store project - it is not permitted to have two projects "
            f"with the same name in the same domain: {record.name}."
        ) from exc
    return record
