"""manage.py tls_certificates: the files it makes, which certificates are accepted, and when it renews them."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from cryptography import x509
from django.core.management import CommandError, call_command

from cloud import env


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tls"


def make(folder: Path, *words: str) -> dict[str, dict]:
    """Run the command; its rows by name."""
    out = StringIO()
    call_command("tls_certificates", f"--output={folder}", "--json", *words, stdout=out)
    return {row["name"]: row for row in json.loads(out.getvalue())}


def done(folder: Path, *words: str) -> dict[str, str]:
    return {name: row["done"] for name, row in make(folder, *words).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def handshake(folder: Path, server: str, client: str, asked: str, trust: str = "") -> None:
    """A handshake in which both sides verify. Raises SSLError."""
    contexts = {}
    for name, protocol in ((server, ssl.PROTOCOL_TLS_SERVER), (client, ssl.PROTOCOL_TLS_CLIENT)):
        context = contexts[protocol] = ssl.SSLContext(protocol)
        context.load_cert_chain(folder / name / f"{name}.crt", folder / name / f"{name}.key")
        context.load_verify_locations(trust or folder / name / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [contexts[ssl.PROTOCOL_TLS_CLIENT].wrap_bio(here, there, server_hostname=asked),
            contexts[ssl.PROTOCOL_TLS_SERVER].wrap_bio(there, here, server_side=True)]  # fmt: skip
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)


def test_machines_accept_each_other_by_every_name_and_by_no_other(folder):
    make(folder, "control=10.0.0.1,control.example", "host1=fd00::2")
    for name in ("control", "control.example", "10.0.0.1"):
        handshake(folder, "control", "host1", name)
    handshake(folder, "host1", "control", "fd00::2")
    for name in ("host1", "10.0.0.2", "127.0.0.1"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            handshake(folder, "control", "host1", name)


def test_another_authority_is_refused(folder, tmp_path):
    make(folder, "control", "host1")
    make(tmp_path / "other", "control")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, "control", "host1", "control", trust=str(tmp_path / "other/ca.crt"))


def test_a_second_run_changes_nothing_and_a_new_machine_is_added(folder):
    assert done(folder, "control=10.0.0.1", "host1") == {"CA": "made", "control": "made", "host1": "made"}
    before = contents(folder)
    assert set(done(folder, "control", "host1").values()) == set(done(folder).values()) == {"kept"}
    assert contents(folder) == before
    assert done(folder, "host2=10.0.0.3") == {"CA": "kept", "host2": "made"}
    assert contents(folder).items() >= before.items()
    handshake(folder, "host2", "control", "10.0.0.3")


def test_it_renews_what_ends_soon_has_other_addresses_or_lost_its_key(folder):
    make(folder, "old", "--days=10", "--renew-within=5")
    make(folder, "new", "moved=10.0.0.1", "broken")
    (folder / "broken/broken.key").write_bytes((folder / "new/new.key").read_bytes())
    assert done(folder, "old", "new", "moved=10.0.0.9", "broken") == {
        "CA": "kept", "old": "renewed", "new": "kept", "moved": "renewed", "broken": "made",
    }  # fmt: skip
    handshake(folder, "moved", "broken", "10.0.0.9")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, "moved", "old", "10.0.0.1")


def test_a_renewed_authority_still_stands_for_what_it_has_signed(folder):
    make(folder, "host1", "--days=9", "--ca-days=10", "--renew-within=5")
    old = (folder / "ca.crt").read_bytes()
    assert done(folder, "host2", "--days=365") == {"CA": "renewed", "host2": "made"}
    assert (folder / "ca.crt").read_bytes() != old
    handshake(folder, "host1", "host2", "host1")
    handshake(folder, "host2", "host1", "host2")


def test_no_certificate_ends_after_its_authority(folder):
    rows = make(folder, "host1", "--ca-days=100", "--days=365", "--renew-within=5")
    assert rows["host1"]["until"] == rows["CA"]["until"]


def test_the_copies_are_where_libvirt_and_qemu_look(folder):
    make(folder, "host1")
    found = contents(folder / "host1")
    alike: dict[bytes, set[str]] = {}
    for path, content in found.items():
        alike.setdefault(content, set()).add(path)
    assert sorted(map(sorted, alike.values())) == [
        ["ca.crt", "pki/CA/cacert.pem", "pki/qemu/ca-cert.pem"],
        ["host1.crt", "pki/libvirt/clientcert.pem", "pki/libvirt/servercert.pem",
         "pki/qemu/client-cert.pem", "pki/qemu/server-cert.pem"],
        ["host1.key", "pki/libvirt/private/clientkey.pem", "pki/libvirt/private/serverkey.pem",
         "pki/qemu/client-key.pem", "pki/qemu/server-key.pem"],
    ]  # fmt: skip
    x509.load_pem_x509_certificate(found["pki/qemu/server-cert.pem"])


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-x", "a b", "x" * 65, "host1=10.0.0.1,../y"])
def test_what_is_no_name_is_refused_and_nothing_is_made(folder, name):
    with pytest.raises(CommandError, match="neither a host name nor an address"):
        make(folder, "--", name)
    assert not folder.exists()


def test_a_lost_key_of_the_authority_is_not_replaced_silently(folder):
    make(folder, "host1")
    (folder / "ca.key").unlink()
    with pytest.raises(CommandError, match="Restore the key"):
        make(folder, "host1")
    with pytest.raises(CommandError, match="is a file"):
        make(folder.parent / "new", "ca.crt")


def test_it_needs_no_database_and_neither_shows_nor_opens_a_key(folder):
    command = [sys.executable, "manage.py", "tls_certificates", f"--output={folder}", "control=10.0.0.1", "host1"]
    settings = {"PATH": os.environ["PATH"], "STILLWATER_STATE": str(folder.parent / "nothing")}
    ran = subprocess.run(
        command, cwd=env.ROOT, env=settings, umask=0, capture_output=True, text=True, timeout=60, check=True
    )
    rows = [line.split() for line in ran.stdout.splitlines()]
    assert [(row[0], row[4]) for row in rows[1:]] == [("CA", "made"), ("control", "made"), ("host1", "made")]
    assert "PRIVATE" not in ran.stdout + ran.stderr
    keys = [path for path in folder.rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert len(keys) == 1 + 2 * 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (folder.parent / "nothing").exists()
