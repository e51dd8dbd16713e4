"""The caller: the identity of every API request, independent of how it was authenticated."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

ADMIN = frozenset({"admin"})
_IMPLIES = {
    "admin": {"admin", "manager", "member", "reader"},
    "manager": {"manager", "member", "reader"},
    "member": {"member", "reader"},
}


def new_request_id() -> str:
    """Return an id in the format of OpenStack's X-Openstack-Request-Id."""
    return f"req-{uuid4()}"


@dataclass(frozen=True, slots=True)
class Caller:
    """A user acting in a project (`project_id` is "" for an unscoped token)."""

    user_id: str
    user_name: str = ""
    project_id: str = ""
    project_name: str = ""
    roles: frozenset[str] = frozenset()
    is_authenticated: bool = True  # DRF reads it

    @property
    def is_admin(self) -> bool:
        """Whether the caller has the role admin, in any project."""
        return "admin" in self.roles

    def has_role(self, role: str) -> bool:
        """Return True when one of the caller's roles is, or implies, `role` (admin > manager > member > reader)."""
        return any(role in _IMPLIES.get(mine, {mine}) for mine in self.roles)
