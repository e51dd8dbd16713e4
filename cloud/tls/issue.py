"""X.509 certificates of the cloud's own authority and of its machines (RFC 5280).

Keys are ECDSA on P-256: a handshake costs a tenth of one with RSA. A machine's certificate has no key usage: libvirt
and QEMU miss key encipherment in one that has, and such keys cannot do it (RFC 8813).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
AUTHORITY = "Stillwater CA"
BACKDATED = timedelta(hours=1)  # the clocks of machines differ
_USAGES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
           "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key. No method shows the key, except `key_pem`, for a file."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        plain = serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)

    def belong_together(self) -> bool:
        """Return whether the key is that of the certificate."""
        return self.certificate.public_key() == self.key.public_key()


def read_pair(pem: bytes, key_pem: bytes) -> Pair:
    """Return the pair of these PEM texts. Raises ValueError for anything else."""
    return Pair(x509.load_pem_x509_certificate(pem), read_key(key_pem))


def read_key(pem: bytes) -> Key:
    """Return the private key of a PEM text. Raises ValueError for anything else, and for keys of another kind."""
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, Key):
        raise ValueError("the key is no ECDSA key")
    return key


def authority(days: int, key: Key | None = None) -> Pair:
    """Return a certificate authority. With the `key` of an earlier one, what that one has signed stays valid."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)])
    builder = _builder(name, name, key, _now() + timedelta(days=days)).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    ).add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)  # fmt: skip
    return Pair(builder.sign(key, hashes.SHA256()), key)


def machine(by: Pair, name: str, addresses: tuple[str, ...], days: float) -> Pair:
    """Return a certificate, for a server and a client, that is valid for the name and the addresses.

    It ends no later than that of the authority.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(_now() + timedelta(days=days), by.certificate.not_valid_after_utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [_general(one) for one in dict.fromkeys((name, *addresses))]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
    builder = _builder(subject, by.certificate.subject, key, until)
    for extension, is_critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True), (x509.ExtendedKeyUsage(both), False),
        (x509.SubjectAlternativeName(names), False), (signer, False),
    ):  # fmt: skip
        builder = builder.add_extension(extension, critical=is_critical)
    return Pair(builder.sign(by.key, hashes.SHA256()), key)


def is_signed_by(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    """Return whether the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def addresses(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses that the certificate is valid for, in its order."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(one.value) for one in found)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, until: datetime
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(_now() - BACKDATED).not_valid_after(until)
        .add_extension(identifier, critical=False)
    )  # fmt: skip


def _usage(*given: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in given for name in _USAGES})


def _general(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
