"""A cell whose database and broker accept TLS only: who is verified, what is refused, and why, in a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import psycopg
import pytest
from django.db import connections

from cells import circuit_breaker, database_urls, failure_reasons, scatter
from cells.models import Cell
from tests.servers import postgres
from tests.servers.certificates import LOOPBACK, Certificates

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
TABLES = "CREATE TABLE compute_instance (id int); CREATE TABLE compute_service (id int)"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> Certificates:
    """Another authority."""
    return Certificates(tmp_path_factory.mktemp("tls") / "other")




@pytest.fixture(scope="module")
def server(certificates) -> Iterator[postgres.Server]:
    one = postgres.Server(*postgres.FORGETFUL)
    try:
        one.serve_tls(certificates.folder / "server")
        one.start()
        one.client = _libpq(certificates.settings())
        one.create("cell")
        with psycopg.connect(f"{one.url}/cell", **one.client) as connection:
            connection.execute(TABLES)
        yield one
    finally:
        one.stop()
        one.remove()


def _libpq(files: dict[str, str]) -> dict[str, str]:
    names = {"sslrootcert": "CA", "sslcert": "CERT", "sslkey": "KEY"}
    return {"sslmode": "verify-full"} | {name: files[f"STILLWATER_TLS_{part}"] for name, part in names.items()}


@pytest.fixture
def process(monkeypatch, settings) -> Iterator[Callable[..., None]]:
    """Start anew with these settings, as far as TLS goes."""
    settings.CELL_TIMEOUT, settings.CELL_RETRY_INTERVAL = 5.0, 0.2

    def start(given: dict[str, str]) -> None:
        for part in ("CA", "CERT", "KEY"):
            monkeypatch.setenv(f"STILLWATER_TLS_{part}", given.get(f"STILLWATER_TLS_{part}", ""))
        database_urls.cell_config.cache_clear()

    yield start
    database_urls.cell_config.cache_clear()


def cell_at(url: str) -> Cell:
    return Cell.objects.create(id=str(uuid4()), name=f"cell-{uuid4().hex}", database_url=url)


def session(cell: Cell) -> tuple:
    """What the server says of the connection: encrypted, and by whom."""
    with connections[cell.alias].cursor() as cursor:
        cursor.execute("SELECT ssl, version, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        return cursor.fetchone()


def why_down(cell: Cell) -> str:
    """The reason, as operators are told it."""
    failed = scatter.ask_one(cell, session)
    assert isinstance(failed, scatter.CellFailure), failed
    return circuit_breaker.known_down(cell.id)


def comes_back(cell: Cell) -> None:
    deadline = time.monotonic() + 30
    while circuit_breaker.known_down(cell.id):
        assert time.monotonic() < deadline, circuit_breaker.known_down(cell.id)
        time.sleep(0.02)
    assert scatter.ask_one(cell, session)[0] is True


def test_both_sides_are_verified(cells, server, certificates, process):
    process(certificates.settings())
    assert scatter.ask_one(cell_at(f"{server.url}/cell"), session) == (True, "TLSv1.3", "/CN=client")


@pytest.mark.parametrize(("files", "query", "reason"), [
    ({}, "", "requires a certificate: set STILLWATER_TLS_CA, _CERT and _KEY"),
    ({"CA", "CERT", "KEY"}, "?sslmode=disable", "lets this user in only with TLS"),
    ({"CA"}, "", "requires a certificate: set STILLWATER_TLS_CA, _CERT and _KEY"),
])  # fmt: skip
def test_who_has_no_tls_or_no_certificate_is_refused(cells, server, certificates, process, files, query, reason):
    process({f"STILLWATER_TLS_{part}": certificates.settings()[f"STILLWATER_TLS_{part}"] for part in files})
    assert reason in why_down(cell_at(f"{server.url}/cell{query}"))


def test_another_authority_is_refused_by_either_side(cells, server, certificates, strangers, process):
    own, other = certificates.settings(), strangers.settings()
    process(own | {"STILLWATER_TLS_CA": other["STILLWATER_TLS_CA"]})
    reason = why_down(cell_at(f"{server.url}/cell"))
    assert reason.startswith("TLS: the server's certificate has expired, or is not signed by an authority in STILL")
    process(other | {"STILLWATER_TLS_CA": own["STILLWATER_TLS_CA"]})
    reason = why_down(cell_at(f"{server.url}/cell?application_name=other"))
    assert reason.startswith("TLS: the other side refuses STILLWATER_TLS_CERT: another authority signed it")


def test_an_expired_certificate_of_the_server_takes_the_cell_down_until_it_is_renewed(
    cells, server, certificates, process
):
    process(certificates.settings())
    cell = cell_at(f"{server.url}/cell")
    certificates.expire("server", LOOPBACK)
    server.serve_tls(certificates.folder / "server")
    try:
        _until(lambda: _refused(server))
        reason = why_down(cell)
        assert reason.startswith("TLS: the server's certificate has expired")
        assert reason.endswith("renew it with manage.py tls_certificates, and reload the server")
        assert failure_reasons.kind(reason) == "TLS"
    finally:
        certificates.renew("server", LOOPBACK)
        server.serve_tls(certificates.folder / "server")
    comes_back(cell)


def test_an_expired_certificate_of_this_machine_is_named_and_its_renewal_needs_no_restart(
    cells, server, certificates, process
):
    process(certificates.settings())
    cell = cell_at(f"{server.url}/cell")
    certificates.expire("client")
    assert "refuses STILLWATER_TLS_CERT, which has expired: renew it with manage.py tls_certi" in why_down(cell)
    certificates.renew("client")
    comes_back(cell)


def test_a_certificate_for_another_name_is_refused(cells, server, certificates, process):
    process(certificates.settings())
    certificates.renew("server", ("localhost",))
    server.serve_tls(certificates.folder / "server")
    try:
        _until(lambda: _refused(server))
        assert "is not valid for the name in the URL" in why_down(cell_at(f"{server.url}/cell"))
    finally:
        certificates.renew("server", LOOPBACK)
        server.serve_tls(certificates.folder / "server")
    _until(lambda: not _refused(server))


def test_a_missing_file_is_named(cells, server, certificates, process, tmp_path):
    process(certificates.settings() | {"STILLWATER_TLS_CA": str(tmp_path / "ca.crt")})
    reason = why_down(cell_at(f"{server.url}/cell"))
    assert reason == f"TLS: {tmp_path}/ca.crt (STILLWATER_TLS_CA) cannot be read: No such file or directory"


def test_a_cell_with_a_plain_broker_is_registered_with_a_warning(run, certificates, process, fresh_url):
    process(certificates.settings())
    words = ("--name=plain", f"--database-url={fresh_url}", "--broker-url=amqp://u:secret@10.0.0.1/")
    ended = run("cell_create", *words)
    assert (ended.code, Cell.objects.get(name="plain").broker_url) == (0, "amqp://u:secret@10.0.0.1/")
    assert ended.err.startswith("Warning: the URL of the broker is not safe: it sends its password in plain text to an")
    assert "secret" not in ended.err


def _refused(server: postgres.Server) -> bool:
    """Whether it shows its new certificate: a reload takes a moment."""
    try:
        psycopg.connect(f"{server.url}/cell", **server.client).close()
    except psycopg.OperationalError:
        return True
    return False


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
