"""Key pairs and their fingerprints, as in Nova."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from django.utils import timezone

from cloud.errors import BadRequest

_BITS = 2048
_LOGIN_NAME = ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")  # user principal name: where Windows looks for the user
_DECADE = timedelta(days=3650)


class InvalidKeypair(BadRequest):
    """The key or its name is invalid."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Keypair data is invalid: {reason}")


@dataclass(frozen=True, slots=True)
class NewKeypair:
    """A new key pair. The private key is shown once and never stored."""

    public: str
    private: str


def fingerprint(public_key: str, kind: str) -> str:
    """Return colon-separated hex: MD5 of an SSH key, SHA-1 of a certificate. Raises InvalidKeypair."""
    try:
        if kind == "x509":
            certificate = x509.load_pem_x509_certificate(public_key.encode())
            return certificate.fingerprint(hashes.SHA1()).hex(":")  # noqa: S303  clients compare with SHA-1
        serialization.load_ssh_public_key(public_key.encode())
        raw = base64.b64decode(public_key.split()[1])
    except Exception as exc:  # whatever exception the parser raises, the key is invalid
        raise InvalidKeypair("failed to generate fingerprint") from exc
    return hashlib.md5(raw, usedforsecurity=False).digest().hex(":")


def make(kind: str, user_id: str) -> NewKeypair:
    """Make an RSA key pair: for SSH, or as a self-signed certificate for logins to Windows."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    if kind == "x509":
        return NewKeypair(_certificate(key, user_id), _pem(key, serialization.PrivateFormat.PKCS8))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    private = _pem(key, serialization.PrivateFormat.TraditionalOpenSSL)
    return NewKeypair(f"{public.decode()} Generated-by-Stillwater", private)


def _pem(key: rsa.RSAPrivateKey, form: serialization.PrivateFormat) -> str:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _certificate(key: rsa.RSAPrivateKey, user_id: str) -> str:
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user_id)]), timezone.now()
    login = user_id.encode()[:127]  # one length byte in the UTF8String below
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + _DECADE)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.OtherName(_LOGIN_NAME, bytes([0x0C, len(login)]) + login)]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
