"""The five roles. Their ids never change, so that scripts may store them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

from cloud.caller import Caller

NAMES = ("admin", "manager", "member", "reader", "service")


@dataclass(frozen=True, slots=True)
class Role:
    """A role that a user has in a project."""

    id: str
    name: str


ROLES = {name: Role(uuid5(NAMESPACE_URL, f"stillwater:role:{name}").hex, name) for name in NAMES}
_BY_ID = {role.id: role for role in ROLES.values()}


def by_id(role_id: str) -> Role | None:
    """Return the role with that id, or None."""
    return _BY_ID.get(role_id)


def effective(assigned: frozenset[str]) -> list[Role]:
    """Return the assigned roles and those that they imply."""
    holder = Caller(user_id="", roles=assigned)
    return [role for role in ROLES.values() if holder.has_role(role.name)]
