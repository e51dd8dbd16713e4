"""Microversions: which are served, and which one a request asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloud.errors import BadRequest, NotAcceptable

MINIMUM = (2, 1)
MAXIMUM = (2, 96)
_FORMAT = re.compile(r"^([1-9]\d{0,8})\.([1-9]\d{0,8}|0)\Z")

Version = tuple[int, int]


def text(version: Version) -> str:
    """Return a version as text: `2.96`."""
    return f"{version[0]}.{version[1]}"


def asked(headers: Mapping[str, str]) -> Version:
    """Return the version that a request asks for; 2.1 without a header. Raises BadRequest, NotAcceptable."""
    wanted = _from_headers(headers)
    if wanted is None:
        return MINIMUM
    if wanted == "latest":
        return MAXIMUM
    match = _FORMAT.match(wanted)
    if match is None:
        raise BadRequest(
            f"API Version String {wanted} is of invalid format. Must be of format MajorNum.MinorNum."
        )
    version = (int(match[1]), int(match[2]))
    if not MINIMUM <= version <= MAXIMUM:
        raise NotAcceptable(
            f"Version {wanted} is not supported by the API. "
            f"Minimum is {text(MINIMUM)} and maximum is {text(MAXIMUM)}."
        )
    return version


def _from_headers(headers: Mapping[str, str]) -> str | None:
    for part in headers.get("OpenStack-API-Version", "").split(","):
        words = part.split()
        if len(words) == 2 and words[0].lower() == "compute":
            return words[1]
    return headers.get("X-OpenStack-Nova-API-Version") or None
