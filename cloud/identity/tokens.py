"""Tokens: user, project and lifetime, encrypted and signed. No token is stored.

A token is one Fernet token around a fixed 82-byte record. It is void when it has expired, when its audit id is in
RevokedToken, or when it is not newer than its user's `revoked_before`.
"""

from __future__ import annotations

import base64
import secrets
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.db.models import Exists
from django.utils import timezone

from cells.compiled_query import CompiledQuery
from cloud import env, errors
from cloud.caller import Caller
from cloud.identity.models import Project, RevokedToken, RoleAssignment, User

_LAYOUT = struct.Struct(">B16s16sBQQ16s16s")
_FORMAT = 1
_NOTHING = bytes(16)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_METHODS = ("password", "token")
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of a token. The second audit id, if any, is that of the first token of its chain."""

    user_id: str
    project_id: str
    methods: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime
    audit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bearer:
    """A valid token and who presents it."""

    payload: Payload
    caller: Caller


# The roles of a user in a project, if both are enabled, with what may make the token void.
_ASSIGNMENTS = CompiledQuery(
    lambda user_id, project_id, audit_id: RoleAssignment.objects.filter(
        user=user_id, project=project_id, user__is_active=True, project__enabled=True
    ).values_list(
        "role", "user__name", "project__name", "user__revoked_before",
        Exists(RevokedToken.objects.filter(audit_id=audit_id)),
    ),
    "user_id", "project_id", "audit_id",
)  # fmt: skip


def issue(
    user: User, project: Project | None, methods: tuple[str, ...], parent: Payload | None = None
) -> str:
    """Return a new token. One made from another token keeps the expiry time and the chain of that token."""
    now = timezone.now()
    audit_ids: tuple[str, ...] = (_text(secrets.token_bytes(16)),)
    expires_at = now + timedelta(seconds=env.get("STILLWATER_TOKEN_TTL"))
    if parent is not None:
        audit_ids += (parent.audit_ids[-1],)
        expires_at = parent.expires_at
        methods = tuple(dict.fromkeys((*methods, *parent.methods)))
    return encode(Payload(user.id, project.id if project else "", methods, now, expires_at, audit_ids))


def encode(payload: Payload) -> str:
    """Return the token of a payload."""
    chain = [_bytes(audit_id) for audit_id in payload.audit_ids]
    record = _LAYOUT.pack(
        _FORMAT,
        bytes.fromhex(payload.user_id),
        bytes.fromhex(payload.project_id) or _NOTHING,
        sum(1 << _METHODS.index(method) for method in payload.methods),
        (payload.issued_at - _EPOCH) // _MICROSECOND,
        (payload.expires_at - _EPOCH) // _MICROSECOND,
        chain[0],
        chain[1] if len(chain) > 1 else _NOTHING,
    )
    return _box(_keys()).encrypt(record).rstrip(b"=").decode()


def decode(raw: str) -> Payload:
    """Return the content of a token, valid or not. Raises Unauthorized for what is no token of ours."""
    if not raw or len(raw) > _LONGEST or not raw.isascii():
        raise errors.Unauthorized
    try:
        record = _box(_keys()).decrypt(raw + "=" * (-len(raw) % 4))
        version, user, project, methods, issued, expires, first, second = _LAYOUT.unpack(record)
    except (InvalidToken, struct.error) as exc:
        raise errors.Unauthorized from exc
    if version != _FORMAT:
        raise errors.Unauthorized
    return Payload(
        user_id=user.hex(),
        project_id="" if project == _NOTHING else project.hex(),
        methods=tuple(name for bit, name in enumerate(_METHODS) if methods >> bit & 1),
        issued_at=_EPOCH + issued * _MICROSECOND,
        expires_at=_EPOCH + expires * _MICROSECOND,
        audit_ids=(_text(first),) if second == _NOTHING else (_text(first), _text(second)),
    )


def verify(raw: str) -> Bearer:
    """Return the bearer of a token that is valid now, in one query. Raises Unauthorized."""
    payload = decode(raw)
    if payload.expires_at <= timezone.now():
        raise errors.Unauthorized
    return _with_project(payload) if payload.project_id else _without_project(payload)


def revoke(payload: Payload) -> None:
    """Void one token. Also delete the revocations of tokens that have expired anyway."""
    RevokedToken.objects.get_or_create(
        audit_id=payload.audit_ids[0], defaults={"expires_at": payload.expires_at}
    )
    RevokedToken.objects.filter(expires_at__lt=timezone.now()).delete()


def _with_project(payload: Payload) -> Bearer:
    audit_id = payload.audit_ids[0]
    rows = _ASSIGNMENTS.rows("default", user_id=payload.user_id, project_id=payload.project_id, audit_id=audit_id)
    if not rows:
        raise errors.Unauthorized
    _, user_name, project_name, revoked_before, is_revoked = rows[0]
    _check_not_revoked(payload, revoked_before, is_revoked=is_revoked)
    granted = frozenset(row[0] for row in rows)
    return Bearer(payload, Caller(payload.user_id, user_name, payload.project_id, project_name, granted))


def _without_project(payload: Payload) -> Bearer:
    user = User.objects.filter(pk=payload.user_id, is_active=True).first()
    if user is None:
        raise errors.Unauthorized
    is_revoked = RevokedToken.objects.filter(audit_id=payload.audit_ids[0]).exists()
    _check_not_revoked(payload, user.revoked_before, is_revoked=is_revoked)
    return Bearer(payload, Caller(user.id, user.name))


def _check_not_revoked(payload: Payload, revoked_before: datetime | None, *, is_revoked: bool) -> None:
    if is_revoked or (revoked_before is not None and payload.issued_at <= revoked_before):
        raise errors.Unauthorized


def _keys() -> tuple[str, ...]:
    keys = tuple(env.get("STILLWATER_TOKEN_KEYS"))
    if not keys:
        raise errors.Unavailable("Identity has no keys: set STILLWATER_TOKEN_KEYS (manage.py token_key).")
    return keys


@lru_cache(maxsize=4)
def _box(keys: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(key) for key in keys])


def _text(audit_id: bytes) -> str:
    return base64.urlsafe_b64encode(audit_id).rstrip(b"=").decode()


def _bytes(audit_id: str) -> bytes:
    return base64.urlsafe_b64decode(audit_id + "==")
