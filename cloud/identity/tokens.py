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
from django.utils import timezone

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
    """A valid token with its records."""

    payload: Payload
    user: User
    project: Project | None
    caller: Caller


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
    """Return the bearer of a token that is valid now, in two queries. Raises Unauthorized."""
    payload = decode(raw)
    if payload.expires_at <= timezone.now():
        raise errors.Unauthorized
    bearer = _bearer(payload)
    revoked_before = bearer.user.revoked_before
    if revoked_before is not None and payload.issued_at <= revoked_before:
        raise errors.Unauthorized
    if RevokedToken.objects.filter(audit_id=payload.audit_ids[0]).exists():
        raise errors.Unauthorized
    return bearer


def revoke(payload: Payload) -> None:
    """Void one token. Also delete the revocations of tokens that have expired anyway."""
    RevokedToken.objects.get_or_create(
        audit_id=payload.audit_ids[0], defaults={"expires_at": payload.expires_at}
    )
    RevokedToken.objects.filter(expires_at__lt=timezone.now()).delete()


def _bearer(payload: Payload) -> Bearer:
    if not payload.project_id:
        user = User.objects.filter(pk=payload.user_id, is_active=True).first()
        if user is None:
            raise errors.Unauthorized
        return Bearer(payload, user, None, Caller(user.id, user.name))
    assignments = list(
        RoleAssignment.objects.select_related("user", "project").filter(
            user=payload.user_id, project=payload.project_id, user__is_active=True, project__enabled=True
        )
    )
    if not assignments:
        raise errors.Unauthorized
    user, project = assignments[0].user, assignments[0].project
    granted = frozenset(assignment.role for assignment in assignments)
    return Bearer(payload, user, project, Caller(user.id, user.name, project.id, project.name, granted))


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
