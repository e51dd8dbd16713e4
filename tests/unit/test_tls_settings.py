"""What `manage.py check` and the start of a process say about TLS files and URLs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cells import broker_tls, checks, database_urls, tls_warnings
from cloud import env
from cloud.tls import files
from tests.servers.certificates import Certificates

PARTS = ("CA", "CERT", "KEY")
URLS = (*tls_warnings.DATABASES, *tls_warnings.BROKERS, tls_warnings.MIGRATION, tls_warnings.PUBLIC)


@pytest.fixture
def certificates(tmp_path) -> Certificates:
    return Certificates(tmp_path / "tls")


@pytest.fixture
def use(monkeypatch):
    """Set what is given, and nothing else."""

    def settings(given: dict[str, str]) -> None:
        for name in (*(f"STILLWATER_TLS_{part}" for part in PARTS), *URLS):
            monkeypatch.setenv(name, given.get(name, ""))

    return settings


def said() -> dict[str, str]:
    return {message.msg: message.id for message in checks.check_tls(None)}


def test_good_files_and_none_are_no_finding(certificates, use):
    use({})
    assert said() == {}
    use(certificates.settings())
    assert said() == {}


def test_each_fault_of_the_files_is_one_sentence_that_names_the_setting(certificates, use, tmp_path):
    good = certificates.settings()
    other = Certificates(tmp_path / "other")
    garbage = tmp_path / "garbage"
    garbage.write_text("nothing")
    for given, expected in (
        ({"CA": str(tmp_path / "none")}, "/none (STILLWATER_TLS_CA) cannot be read: No such file or directory."),
        ({"CERT": str(garbage)}, "garbage (STILLWATER_TLS_CERT) is not a certificate in PEM form."),
        ({"KEY": str(garbage)}, "garbage (STILLWATER_TLS_KEY) is not a private key in PEM form without a password."),
        ({"KEY": certificates.settings("server")["STILLWATER_TLS_KEY"]}, "is not the key of"),
        ({"CA": other.settings()["STILLWATER_TLS_CA"]}, "(STILLWATER_TLS_CERT) is not signed by"),
    ):
        garbage.chmod(0o600)
        use(good | {f"STILLWATER_TLS_{part}": path for part, path in given.items()})
        ((text, number),) = said().items()
        assert expected in text
        assert number == "cells.E003"


def test_an_expired_certificate_is_an_error_and_one_that_ends_soon_a_warning(certificates, use):
    use(certificates.settings())
    certificates.expire("client")
    ((text, number),) = said().items()
    assert number == "cells.E003"
    assert text.endswith("UTC: renew it with manage.py tls_certificates.")
    certificates.renew("client", days=13)
    ((text, number),) = said().items()
    assert (number, "expires on" in text) == ("cells.W001", True)


def test_a_key_that_everybody_may_read_is_an_error(certificates, use):
    use(certificates.settings())
    (certificates.folder / "client/client.key").chmod(0o644)
    ((text, number),) = said().items()
    assert (number, text.startswith("every user of this machine may read")) == ("cells.E003", True)


@pytest.mark.parametrize(("name", "url", "plain"), [
    ("STILLWATER_BROKER_URL", "amqp://u:secret@10.0.0.1/", True),
    ("STILLWATER_CELL_BROKER_URL", "redis://:secret@control:6379/0", True),
    ("STILLWATER_BROKER_URL", "amqps://u:secret@10.0.0.1/", False),
    ("STILLWATER_BROKER_URL", "rediss://:secret@10.0.0.1/", False),
    ("STILLWATER_BROKER_URL", "amqp://u:secret@127.0.0.1/", False),
    ("STILLWATER_BROKER_URL", "redis://[::1]/", False),
    ("STILLWATER_DATABASE_URL", "postgresql://u:secret@10.0.0.1/x", False),
    ("STILLWATER_DATABASE_URL", "postgresql://u:secret@10.0.0.1/x?sslmode=prefer", True),
    ("STILLWATER_CELL_DATABASE_URL", "postgresql://u:secret@control/x?sslmode=disable", True),
    ("STILLWATER_DATABASE_URL", "postgresql://u:secret@localhost/x?sslmode=disable", False),
    ("STILLWATER_DATABASE_URL", "sqlite:////tmp/x", False),
    ("STILLWATER_PUBLIC_URL", "http://control:8774", True),
    ("STILLWATER_PUBLIC_URL", "https://control:8774", False),
    ("STILLWATER_PUBLIC_URL", "http://127.0.0.1:8774", False),
    ("STILLWATER_LIBVIRT_MIGRATION_URI", "qemu+tcp://host1/system", True),
    ("STILLWATER_LIBVIRT_MIGRATION_URI", "qemu+tls://host1/system", False),
])  # fmt: skip
def test_a_password_in_plain_text_to_another_machine_is_a_warning(certificates, use, name, url, plain):
    use({name: url})
    assert said() == {}  # no TLS: as before
    use(certificates.settings() | {name: url})
    found = said()
    assert list(found.values()) == (["cells.W001"] if plain else [])
    assert "secret" not in str(found)
    for text in found:
        assert text.startswith(f"{name}: ")


@pytest.mark.parametrize(("url", "asked", "serves"), [
    ("https://control:8774", "", False), ("https://control:8774", None, True), ("http://control:8774", None, False),
    ("http://control:8774", "on", True), ("https://control:8774", "off", False),
])  # fmt: skip
def test_the_api_serves_https_where_its_url_says_so(certificates, url, asked, serves):
    given = certificates.settings() | {"STILLWATER_PUBLIC_URL": url}
    given |= {} if asked is None else {"STILLWATER_API_TLS": asked}
    assert (files.of_api(lambda name: env.VARIABLES[name].read(given)) is not None) is serves


SHOW = """
from cloud import settings
print(settings.LIBVIRT_OPTIONS["migration_tls"], getattr(settings, "SECURE_PROXY_SSL_HEADER", None) is not None)
"""


@pytest.mark.parametrize(("files_set", "more", "encrypts", "trusts_proxy"), [
    (False, {}, False, True), (True, {}, True, False),
    (True, {"STILLWATER_MIGRATION_TLS": "off", "STILLWATER_API_TLS": "off"}, False, True),
    (False, {"STILLWATER_MIGRATION_TLS": "on"}, True, True),
])  # fmt: skip
def test_what_follows_from_the_files_can_be_switched_off(
    certificates, tmp_path, files_set, more, encrypts, trusts_proxy
):
    """An API that serves https itself believes no client that claims to be a proxy."""
    given = {"PATH": os.environ["PATH"], "STILLWATER_STATE": str(tmp_path), "STILLWATER_PUBLIC_URL": "https://c:8774"}
    given |= (certificates.settings() if files_set else {}) | more
    ran = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=env.ROOT, env=given, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == [str(encrypts), str(trusts_proxy)]


def test_urls_say_more_than_the_settings(certificates, use):
    url = "postgresql://u:p@host/x?sslmode=verify-ca&sslcert=/mine"
    use(certificates.settings())
    asked = database_urls.config(url)["OPTIONS"]
    assert (asked["sslmode"], asked["sslcert"]) == ("verify-ca", "/mine")
    assert asked["sslrootcert"] == certificates.settings()["STILLWATER_TLS_CA"]
    use({})
    assert "sslmode" not in database_urls.config("postgresql://u:p@host/x")["OPTIONS"]
    assert broker_tls.options("amqp://host/") is False


@pytest.mark.parametrize(("given", "sentence"), [
    ({"CERT": "/x"}, "STILLWATER_TLS_CERT and STILLWATER_TLS_KEY belong together: set both, or none."),
    ({"CERT": "/x", "KEY": "/y"}, "STILLWATER_TLS_CERT needs STILLWATER_TLS_CA, the authority that signed it."),
])  # fmt: skip
def test_settings_that_do_not_fit_together_stop_the_process(given, sentence, tmp_path):
    settings = {f"STILLWATER_TLS_{part}": path for part, path in given.items()}
    ended = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=env.ROOT, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "STILLWATER_STATE": str(tmp_path)} | settings,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (os.EX_CONFIG, f"stillwater: {sentence}\n")


def test_check_prints_the_fault_and_fails(certificates, tmp_path):
    certificates.expire("client")
    ended = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=env.ROOT, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "STILLWATER_STATE": str(tmp_path)} | certificates.settings(),
    )  # fmt: skip
    assert ended.returncode == 1
    assert "cells.E003" in ended.stderr
