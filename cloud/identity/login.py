"""Login: from a request body to a user, a project and a token."""

from __future__ import annotations

from typing import Any

from cloud import errors, log
from cloud.identity import tokens
from cloud.identity.models import DOMAIN_ID, DOMAIN_NAME, Project, User

logger = log.get(__name__)
_TEXT = {"type": "string", "minLength": 1, "maxLength": 255}
_DOMAIN = {"type": "object", "properties": {"id": _TEXT, "name": _TEXT}, "minProperties": 1}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["auth"],
    "properties": {
        "auth": {
            "type": "object",
            "required": ["identity"],
            "properties": {
                "identity": {
                    "type": "object",
                    "required": ["methods"],
                    "properties": {
                        "methods": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                        "password": {
                            "type": "object",
                            "required": ["user"],
                            "properties": {
                                "user": {
                                    "type": "object",
                                    "required": ["password"],
                                    "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
                                    "properties": {
                                        "id": _TEXT,
                                        "name": _TEXT,
                                        "domain": _DOMAIN,
                                        "password": {"type": "string", "maxLength": 4096},
                                    },
                                }
                            },
                        },
                        "token": {
                            "type": "object",
                            "required": ["id"],
                            "properties": {"id": {"type": "string"}},
                        },
                    },
                },
                "scope": {
                    "anyOf": [
                        {"enum": ["unscoped"]},
                        {
                            "type": "object",
                            "maxProperties": 1,
                            "properties": {
                                "project": {
                                    "type": "object",
                                    "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
                                    "properties": {"id": _TEXT, "name": _TEXT, "domain": _DOMAIN},
                                },
                            },
                        },
                    ]
                },
            },
        }
    },
}


def log_in(auth: dict[str, Any]) -> str:
    """Return a token for a valid `auth` object. Raises Unauthorized; its time does not tell what was wrong."""
    identity = auth["identity"]
    parent = None
    if identity["methods"] == ["password"]:
        user = _by_password(_required(identity, "password")["user"])
    elif identity["methods"] == ["token"]:
        bearer = tokens.verify(_required(identity, "token")["id"])
        user, parent = _user(bearer.caller.user_id), bearer.payload
    else:
        raise errors.Unauthorized("Attempted to authenticate with an unsupported method.")
    project = _project(user, auth.get("scope"))
    logger.info("token.issued", user_id=user.id, project_id=project.id if project else "")
    return tokens.issue(user, project, tuple(identity["methods"]), parent)


def _required(identity: dict[str, Any], method: str) -> dict[str, Any]:
    if method not in identity:
        raise errors.BadRequest(f"Expecting to find {method} in identity.")
    return identity[method]


def _user(user_id: str) -> User:
    found = User.objects.filter(pk=user_id).first()
    if found is None:  # deleted since its token was verified
        raise errors.Unauthorized
    return found


def _by_password(claim: dict[str, Any]) -> User:
    user = _claimed(claim)
    if user is None:
        User().set_password(claim["password"])  # as slow as a wrong password
    elif user.check_password(claim["password"]) and user.is_active:
        return user
    # The name is not logged: people type passwords into it by mistake.
    logger.warning("login.refused", user_id=user.id if user else "")
    raise errors.Unauthorized


def _claimed(claim: dict[str, Any]) -> User | None:
    if "id" in claim:
        return User.objects.filter(pk=claim["id"]).first()
    return User.objects.filter(name=claim["name"]).first() if _is_ours(claim.get("domain")) else None


def _is_ours(domain: dict[str, Any] | None) -> bool:
    """Return whether it is the only domain there is; no domain means that one."""
    if domain is None:
        return True
    return domain.get("id", DOMAIN_ID) == DOMAIN_ID and domain.get("name", DOMAIN_NAME).lower() == DOMAIN_ID


def _project(user: User, scope: Any) -> Project | None:
    mine = Project.objects.filter(assignments__user=user, enabled=True).distinct()
    if scope is None:
        return mine.filter(pk=user.default_project_id).first() if user.default_project_id else None
    if scope == "unscoped" or "unscoped" in scope:
        return None
    wanted = scope.get("project")
    if wanted is None:  # system and domain scope: no user has roles there
        raise errors.Unauthorized
    if "id" in wanted:
        project = mine.filter(pk=wanted["id"]).first()
    else:
        project = mine.filter(name=wanted["name"]).first() if _is_ours(wanted.get("domain")) else None
    if project is None:
        logger.warning("scope.refused", user_id=user.id)
        raise errors.Unauthorized
    return project
