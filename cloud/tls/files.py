"""The files with which this process verifies others and identifies itself: STILLWATER_TLS_CA, _CERT and _KEY.

Workers import this, so it loads nothing of X.509 (70 ms).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud import env


class BadTlsSettings(ValueError):
    """The three settings do not fit together. The text says what to set."""


@dataclass(frozen=True, slots=True)
class Files:
    """`certificate` and `key`: both or none."""

    authority: Path
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the files. `is_fatal`: connections fail because of it now."""

    text: str
    is_fatal: bool = True


def configured(read: Callable[[str], Any] = env.get) -> Files | None:
    """Return the files that the settings name; None without them. Raises BadTlsSettings."""
    authority, certificate, key = (read(f"STILLWATER_TLS_{part}") for part in ("CA", "CERT", "KEY"))
    if bool(certificate) != bool(key):
        raise BadTlsSettings("STILLWATER_TLS_CERT and STILLWATER_TLS_KEY belong together: set both, or none.")
    if certificate and not authority:
        raise BadTlsSettings("STILLWATER_TLS_CERT needs STILLWATER_TLS_CA, the authority that signed it.")
    return Files(authority, certificate, key) if authority else None


def of_api(read: Callable[[str], Any] = env.get) -> Files | None:
    """Return the files with which the API serves https; None where it serves http. Raises BadTlsSettings."""
    found, asked = configured(read), read("STILLWATER_API_TLS")
    if asked is None:
        asked = read("STILLWATER_PUBLIC_URL").startswith("https://")
    return found if found and found.certificate and asked else None
