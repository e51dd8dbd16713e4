"""Shared by the identity views: Keystone's faults, addresses, authorisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from rest_framework.request import Request

from cloud import errors, faults
from cloud.api_base import JsonView, caller
from cloud.identity.models import DOMAIN_ID, DOMAIN_NAME, Project, User

DOMAIN = {"id": DOMAIN_ID, "name": DOMAIN_NAME}
NAME_PATTERN = r"\S"


class IdentityView(JsonView):
    """A Keystone resource."""

    def get_exception_handler(self) -> Callable[..., Any]:
        """Return the handler for Keystone's faults."""
        return faults.identity_handler


class UnknownView(IdentityView):
    """Any path without a view."""

    authentication_classes = ()
    permission_classes = ()

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Raise NotFound for any method."""
        raise errors.NotFound


def v3(path: str) -> str:
    """Return the public address of a path under /identity/v3."""
    return f"{settings.PUBLIC_URL}/identity/v3{path}"


def require(request: Request, action: str, *, unless: bool = False) -> None:
    """Raise Forbidden, with Keystone's text, for callers who are not admins, unless `unless` holds."""
    if not (unless or caller(request).is_admin):
        raise errors.Forbidden(f"You are not authorized to perform the requested action: identity:{action}.")


def project(project_id: str) -> Project:
    """Return the project. Raises NotFound."""
    found = Project.objects.filter(pk=project_id).first()
    if found is None:
        raise errors.NotFound(f"Could not find project: {project_id}.")
    return found


def user(user_id: str) -> User:
    """Return the user. Raises NotFound."""
    found = User.objects.filter(pk=user_id).first()
    if found is None:
        raise errors.NotFound(f"Could not find user: {user_id}.")
    return found


def default_domain_only(fields: dict[str, Any]) -> None:
    """Raise NotFound for a domain or parent other than the only domain."""
    for key in ("domain_id", "parent_id"):
        if fields.get(key) not in (None, DOMAIN_ID):
            raise errors.NotFound(f"Could not find domain: {fields[key]}.")
