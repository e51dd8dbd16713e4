"""/v3/users."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud import errors, log
from cloud.api_base import body, caller, is_true, page
from cloud.identity.api.base import NAME_PATTERN, IdentityView, default_domain_only, require, user, v3
from cloud.identity.api.projects import as_json as project_json
from cloud.identity.models import DOMAIN_ID, Project, User

logger = log.get(__name__)
_PASSWORD = {"type": ["string", "null"], "minLength": 1, "maxLength": 4096}
_FIELDS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": NAME_PATTERN},
    "description": {"type": ["string", "null"], "maxLength": 10000},
    "email": {"type": ["string", "null"], "maxLength": 254},
    "password": _PASSWORD,
    "enabled": {"type": "boolean"},
    "domain_id": {"type": ["string", "null"]},
    "default_project_id": {"type": ["string", "null"], "maxLength": 64},
}


def _schema(*required: str, fields: dict[str, Any] = _FIELDS) -> dict[str, Any]:
    inner = {"type": "object", "properties": fields, "required": list(required)}
    return {"type": "object", "required": ["user"], "properties": {"user": inner}}


CREATE, UPDATE = _schema("name"), _schema()
_TEXT = {"type": "string", "minLength": 1, "maxLength": 4096}
PASSWORD = _schema("password", "original_password", fields={"password": _TEXT, "original_password": _TEXT})


class UsersView(IdentityView):
    """The collection of users."""

    def get(self, request: Request) -> Response:
        """List users; filters: `name`, `enabled`, `domain_id`."""
        require(request, "list_users")
        found = User.objects.all()
        query = request.query_params
        if "name" in query:
            found = found.filter(name=query["name"])
        if "enabled" in query:
            found = found.filter(is_active=is_true(query["enabled"]))
        if query.get("domain_id", DOMAIN_ID) != DOMAIN_ID:
            found = found.none()
        return page(request, found, "users", v3("/users"), as_json)

    def post(self, request: Request) -> Response:
        """Create a user. Raises Conflict when the name is taken."""
        require(request, "create_user")
        made = User()
        made.set_unusable_password()
        _write(made, body(request, CREATE)["user"])
        logger.info("user.created", user=made.id)
        return Response({"user": as_json(made)}, status=201)


class UserView(IdentityView):
    """One user."""

    def get(self, request: Request, user_id: str) -> Response:
        """Show a user: any user to admins, to others only their own."""
        require(request, "get_user", unless=caller(request).user_id == user_id)
        return Response({"user": as_json(user(user_id))})

    def patch(self, request: Request, user_id: str) -> Response:
        """Change any field. A new password, and disabling, void the user's tokens."""
        require(request, "update_user")
        changed = _write(user(user_id), body(request, UPDATE)["user"])
        return Response({"user": as_json(changed)})

    def delete(self, request: Request, user_id: str) -> Response:
        """Delete a user with its roles; its tokens are void."""
        require(request, "delete_user")
        user(user_id).delete()
        logger.info("user.deleted", user=user_id)
        return Response(status=204)


class UserPasswordView(IdentityView):
    """POST /v3/users/{id}/password."""

    def post(self, request: Request, user_id: str) -> Response:
        """Change the caller's own password. Voids all own tokens, this one included."""
        fields = body(request, PASSWORD)["user"]
        if caller(request).user_id != user_id:
            raise errors.Forbidden(
                "You are not authorized to perform the requested action: identity:change_password."
            )
        owner = user(user_id)
        if not owner.check_password(fields["original_password"]):
            raise errors.Unauthorized
        owner.set_password(fields["password"])
        owner.save(update_fields=["password", "revoked_before"])
        logger.info("user.password_changed", user=user_id)
        return Response(status=204)


class UserProjectsView(IdentityView):
    """GET /v3/users/{id}/projects."""

    def get(self, request: Request, user_id: str) -> Response:
        """List the projects in which the user has a role."""
        require(request, "list_user_projects", unless=caller(request).user_id == user_id)
        user(user_id)
        found = Project.objects.filter(assignments__user=user_id).distinct()
        return page(request, found, "projects", v3(f"/users/{user_id}/projects"), project_json)


def as_json(record: User) -> dict[str, Any]:
    """Return Keystone's view of a user."""
    shown: dict[str, Any] = {
        "id": record.id, "name": record.name, "domain_id": DOMAIN_ID, "enabled": record.is_active,
        "default_project_id": record.default_project_id or None, "password_expires_at": None, "options": {},
        "links": {"self": v3(f"/users/{record.id}")},
    }  # fmt: skip
    extra = {"email": record.email, "description": record.description}
    return shown | {key: value for key, value in extra.items() if value}


def _write(record: User, fields: dict[str, Any]) -> User:
    default_domain_only(fields)
    record.name = fields.get("name", record.name)
    for key in ("description", "email", "default_project_id"):
        setattr(record, key, fields.get(key, getattr(record, key)) or "")
    record.is_active = fields.get("enabled", record.is_active)
    if not record.is_active:
        record.revoke_tokens()
    if fields.get("password"):
        record.set_password(fields["password"])
    try:
        with transaction.atomic():
            record.save()
    except IntegrityError as exc:
        raise errors.Conflict(
            f"Conflict occurred attempting to store user - Duplicate entry found with name {record.name} "
            f"at domain ID {DOMAIN_ID}."
        ) from exc
    return record
