"""The folder of the authority and of all machines' certificates, which `manage.py tls_certificates` keeps.

    ca.crt  ca.key                          the authority; its key stays here
    NAME/ca.crt  NAME/NAME.crt  NAME/NAME.key
    NAME/pki/CA  NAME/pki/libvirt           the same, as libvirt finds them below /etc/pki
    NAME/pki/qemu                           the same, as QEMU finds them there
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloud.tls import issue
from cloud.tls.issue import Pair

# Also an IP address; never a path. 64: the longest common name (RFC 5280, appendix A).
HOST_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9](?:[A-Za-z0-9.:_-]*[A-Za-z0-9])?")
PRIVATE, PUBLIC = 0o600, 0o644
# https://libvirt.org/kbase/tlscerts.html, and default_tls_x509_cert_dir of /etc/libvirt/qemu.conf
COPIES = {
    "ca": ("ca.crt", "pki/CA/cacert.pem", "pki/qemu/ca-cert.pem"),
    "certificate": ("{name}.crt", "pki/libvirt/servercert.pem", "pki/libvirt/clientcert.pem",
                    "pki/qemu/server-cert.pem", "pki/qemu/client-cert.pem"),
    "key": ("{name}.key", "pki/libvirt/private/serverkey.pem", "pki/libvirt/private/clientkey.pem",
            "pki/qemu/server-key.pem", "pki/qemu/client-key.pem"),
}  # fmt: skip


class BadStore(Exception):
    """The folder, or a name for it, is not usable. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Validity:
    """For how many days certificates are made, and how long before their end they are renewed."""

    machine_days: int
    authority_days: int
    renew_days: int

    def ends_soon(self, pair: Pair) -> bool:
        """Return whether the certificate has to be renewed."""
        return pair.certificate.not_valid_after_utc < datetime.now(UTC) + timedelta(days=self.renew_days)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store has for one name now. `done`: made, renewed or kept; `why`: why it was renewed."""

    name: str
    addresses: tuple[str, ...]
    until: datetime
    done: str
    why: str = ""


def parse_machine(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return name and addresses of `NAME[=ADDRESS,...]`; None for addresses that are not given. Raises BadStore."""
    name, given, rest = text.partition("=")
    addresses = tuple(one.strip() for one in rest.split(",") if one.strip())
    for one in (name, *addresses):
        if not HOST_NAME.fullmatch(one):
            raise BadStore(f"{one!r} is neither a host name nor an address.")
    return name, addresses if given else None


def update(folder: Path, machines: Mapping[str, tuple[str, ...] | None], validity: Validity) -> list[Kept]:
    """Make or renew what is missing or ends soon, and return all: the authority, then the machines.

    A machine without given addresses keeps those of its certificate. Without machines: all that the folder has. It may
    run twice; a second process waits for the first. Raises BadStore, and OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        authority, kept = _authority(folder, validity)
        names = machines or dict.fromkeys(_known(folder))
        return [kept, *(_machine(folder, authority, name, given, validity) for name, given in names.items())]


def _authority(folder: Path, validity: Validity) -> tuple[Pair, Kept]:
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() and not key.exists():
        raise BadStore(f"{certificate} is there and {key} is not. Restore the key from a backup; without it, begin "
                       "anew in another folder and replace the files of all machines.")  # fmt: skip
    pair, done, why = _read(certificate, key), "kept", ""
    if pair is None and certificate.exists():
        raise BadStore(f"{certificate} and {key} do not belong together. Restore both from a backup.")
    if pair is None or validity.ends_soon(pair):
        done, why = ("renewed", "it ends soon: copy ca.crt to all machines") if pair else ("made", "")
        # A renewed authority keeps its key, so that what it has signed stays valid. A killed run leaves a key alone.
        pair = issue.authority(validity.authority_days, _read_key(key))
        _write(key, pair.key_pem, PRIVATE)
        _write(certificate, pair.pem, PUBLIC)
    return pair, Kept("CA", (), pair.certificate.not_valid_after_utc, done, why)


def _machine(
    folder: Path, authority: Pair, name: str, given: tuple[str, ...] | None, validity: Validity
) -> Kept:  # fmt: skip
    home = folder / name
    if home.exists() and not home.is_dir():
        raise BadStore(f"{name!r} cannot be the name of a machine: {home} is a file.")
    found = _read(home / f"{name}.crt", home / f"{name}.key")
    before = issue.addresses(found.certificate) if found else ()
    wanted = tuple(dict.fromkeys((name, *(before if given is None else given))))
    why = ""
    if found and not issue.is_signed_by(found.certificate, authority.certificate):
        why = "another authority had signed it"
    elif found and set(wanted) != set(before):
        why = "its addresses have changed"
    elif found and validity.ends_soon(found):
        why = "it ended soon"
    pair = found if found and not why else issue.machine(authority, name, wanted, validity.machine_days)
    _lay_out(home, name, authority, pair)
    done = "kept" if pair is found else "renewed" if found else "made"
    return Kept(name, wanted, pair.certificate.not_valid_after_utc, done, why)


def _lay_out(home: Path, name: str, authority: Pair, pair: Pair) -> None:
    """Write every copy; what a killed run left is completed, because a copy that is there is written again."""
    contents = {"ca": (authority.pem, PUBLIC), "certificate": (pair.pem, PUBLIC), "key": (pair.key_pem, PRIVATE)}
    for kind, copies in COPIES.items():
        for copy in copies:
            _write(home / copy.format(name=name), *contents[kind])


def _known(folder: Path) -> Iterator[str]:
    return (entry.name for entry in sorted(folder.iterdir()) if (entry / f"{entry.name}.crt").is_file())


def _read(certificate: Path, key: Path) -> Pair | None:
    """Return the pair; None when it is not there, is damaged, or does not belong together."""
    try:
        pair = issue.read_pair(certificate.read_bytes(), key.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return pair if pair.belong_together() else None


def _read_key(path: Path) -> issue.Key | None:
    try:
        return issue.read_key(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadStore(f"{path} is damaged: restore it from a backup.") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace the file atomically; leave one alone that has this content and mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_file() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask is
        file.write(content)
    new.replace(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
