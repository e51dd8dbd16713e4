"""What is wrong with this process's TLS files: missing, expired, of another authority."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from cloud.tls import issue
from cloud.tls.failures import RENEW
from cloud.tls.files import Fault, Files

SOON = timedelta(days=14)  # warned so long before the end of a certificate


def of(files: Files) -> list[Fault]:
    """Return what is wrong with the files now, the causes first."""
    found: list[Fault] = []
    authorities = _certificates(files.authority, "STILLWATER_TLS_CA", found)
    if files.certificate is None or files.key is None:
        return found
    own = _certificates(files.certificate, "STILLWATER_TLS_CERT", found)[:1]
    public = _public_key(files.key, found)
    if own and public and _der(own[0].public_key()) != public:
        found.append(Fault(f"{files.key} (STILLWATER_TLS_KEY) is not the key of {files.certificate}"))
    if own and authorities and not any(issue.is_signed_by(own[0], one) for one in authorities):
        found.append(Fault(f"{files.certificate} (STILLWATER_TLS_CERT) is not signed by {files.authority}"))
    return found


def ends(certificate: Path) -> float:
    """Return the Unix time at which the certificate ends; 0 when it cannot be read."""
    found = _certificates(certificate, "", [])
    return found[0].not_valid_after_utc.timestamp() if found else 0.0


def _certificates(path: Path, setting: str, found: list[Fault]) -> list[x509.Certificate]:
    name = f"{path} ({setting})"
    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        found.append(Fault(f"{name} cannot be read: {error.strerror}"))
        return []
    except ValueError:
        found.append(Fault(f"{name} is not a certificate in PEM form"))
        return []
    until, now = certificates[0].not_valid_after_utc, datetime.now(UTC)
    if until < now:
        found.append(Fault(f"{name} expired on {until:%Y-%m-%d %H:%M} UTC: {RENEW}"))
    elif until < now + SOON:
        found.append(Fault(f"{name} expires on {until:%Y-%m-%d %H:%M} UTC: {RENEW}", is_fatal=False))
    return certificates


def _public_key(path: Path, found: list[Fault]) -> bytes:
    """Return the public half of a private key; empty when it cannot be read."""
    name = f"{path} (STILLWATER_TLS_KEY)"
    try:
        if path.stat().st_mode & stat.S_IRWXO:
            found.append(Fault(f"every user of this machine may read {name}: chmod 600"))
        return _der(serialization.load_pem_private_key(path.read_bytes(), None).public_key())
    except OSError as error:
        found.append(Fault(f"{name} cannot be read: {error.strerror}"))
    except (ValueError, TypeError):  # TypeError: it has a password
        found.append(Fault(f"{name} is not a private key in PEM form without a password"))
    return b""


def _der(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
