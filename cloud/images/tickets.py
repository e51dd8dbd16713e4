"""Image tickets: the permission of a host, which has no user token, to fetch or to store one image.

A ticket is in an action's record and in the header or query of the request; it is never logged.
"""

from __future__ import annotations

import hmac
from typing import Literal

from django.core import signing

from cloud import env, errors

Right = Literal["read", "write"]
_SALT = "stillwater.images.{}"


def issue(image_id: str, right: Right) -> str:
    """Return a ticket for one image and one right."""
    return _signer(right).sign(image_id)


def check(ticket: str, image_id: str, right: Right) -> None:
    """Raise Unauthorized unless the ticket is for this image and right, and not expired."""
    try:
        signed = _signer(right).unsign(ticket, max_age=env.get("STILLWATER_IMAGE_TICKET_TTL"))
    except signing.BadSignature as exc:
        raise errors.Unauthorized("This image ticket is not good (any more).") from exc
    if not hmac.compare_digest(signed.encode(), image_id.encode()):
        raise errors.Unauthorized("This image ticket is for another image.")


def _signer(right: Right) -> signing.TimestampSigner:
    return signing.TimestampSigner(salt=_SALT.format(right))
