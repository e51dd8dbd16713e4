"""Why a TLS connection failed, and what to do, in one sentence.

libpq and the clients of brokers wrap OpenSSL's errors, often as text alone, so texts are matched. Python's ssl module
and libpq name the same alerts alike (RFC 8446, section 6).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

from cloud.tls import files

COMMAND = "manage.py tls_certificates"
RENEW = f"renew it with {COMMAND}"
NO_CERTIFICATE = "the other side requires a certificate: set STILLWATER_TLS_CA, _CERT and _KEY"
_BY_TEXT = [
    (re.compile(pattern, re.IGNORECASE), sentence)
    for pattern, sentence in (
        ("alert certificate expired", f"the other side refuses STILLWATER_TLS_CERT, which has expired: {RENEW}"),
        ("alert (unknown ca|bad certificate|unsupported certificate|decrypt error)",
         "the other side refuses STILLWATER_TLS_CERT: another authority signed it than the one it trusts"),
        ("certificate.required|requires a valid client certificate|alert handshake failure",
         NO_CERTIFICATE),
        ("certificate has expired", f"the server's certificate has expired: {RENEW}, and reload the server"),
        ("certificate is not yet valid", "the server's certificate is not valid yet: compare the clocks"),
        ("mismatch, certificate is not valid for|does not match host name",
         f"the server's certificate is not valid for the name in the URL: make one with this name ({COMMAND})"),
        ("self[- ]signed certificate|unable to get (local )?issuer certificate",
         "the server's certificate is not signed by an authority in STILLWATER_TLS_CA"),
        # libpq says no more than this
        ("certificate verify failed", "the server's certificate has expired, or is not signed by an authority in "
         f"STILLWATER_TLS_CA: {RENEW}, and reload the server"),
        ("no pg_hba.conf entry .* no encryption",
         "the server lets this user in only with TLS, if at all: set STILLWATER_TLS_CA"),
        ("does not support SSL|wrong version number|record layer failure|packet length too long",
         "the server speaks no TLS on this port: switch it on there, or correct the URL"),
    )
]  # fmt: skip
# Of this machine's files, in libpq's words.
_OWN = re.compile("certificate file|private key file|key values mismatch", re.IGNORECASE)
# With TLS 1.3 a client has often begun to send when the server refuses its certificate: the refusal is lost with the
# connection. Files that cannot be read fail as such.
_MAYBE_OWN = (ssl.SSLError, FileNotFoundError, PermissionError, ConnectionResetError, BrokenPipeError)


def describe(error: BaseException) -> str:
    """Return the sentence, which begins with "TLS: "; "" for a failure that has nothing to do with TLS."""
    causes = list(_chain(error))
    text = " ".join(str(one) for one in causes)
    for pattern, sentence in _BY_TEXT:
        if pattern.search(text):
            return f"TLS: {sentence}"
    failed = [one for one in causes if isinstance(one, _MAYBE_OWN)]
    configured = files.configured()
    if configured and (failed or _OWN.search(text)) and (fault := _fault_of(configured)):
        return f"TLS: {fault}"
    if not any(isinstance(one, ssl.SSLError) for one in failed):
        return ""
    if configured is None or configured.certificate is None:
        return f"TLS: {NO_CERTIFICATE}"
    return f"TLS: the connection ended during the handshake; the log of the other side may say why ({failed[0]})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _fault_of(configured: files.Files) -> str:
    from cloud.tls import faults  # noqa: PLC0415  loads X.509, which only a failed connection needs

    return next((fault.text for fault in faults.of(configured) if fault.is_fatal), "")
