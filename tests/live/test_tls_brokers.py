"""Brokers that accept TLS only, with certificates on both sides: what is refused, why, and how it comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection, Consumer, pools

from cells import broker_circuit_breaker, broker_tls, brokers
from cloud import env
from compute.operations import dispatch
from tests.live.cloud import eventually
from tests.servers import rabbitmq, redis
from tests.servers.certificates import LOOPBACK, Certificates

pytestmark = pytest.mark.live
SECONDS = 30


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> Certificates:
    """Another authority."""
    return Certificates(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="module", params=["rabbitmq", "redis"])
def server(request, certificates) -> Iterator[tuple[str, Callable[[], None]]]:
    """Its URL, and how it takes renewed certificates."""
    home = certificates.folder / "server"
    if request.param == "redis":
        with redis.server(home) as one:
            yield one.url, one.read_certificates
        return
    with rabbitmq.server(home=home) as other:
        yield other.url("cell1"), other.read_certificates


@pytest.fixture
def process(monkeypatch, server) -> Iterator[Callable[[dict[str, str]], None]]:
    """Start anew with these settings, as far as TLS goes."""

    def start(given: dict[str, str]) -> None:
        for part in ("CA", "CERT", "KEY"):
            monkeypatch.setenv(f"STILLWATER_TLS_{part}", given.get(f"STILLWATER_TLS_{part}", ""))
        forget()

    yield start
    forget()


def forget() -> None:
    """Close the connections of this process to brokers, and its breakers."""
    broker_circuit_breaker.reset()
    pools.reset()


def wake(url: str) -> bool:
    return dispatch.publish(url, "q", dispatch.RUN_STEP, {"step_id": 1})


def why_down(url: str) -> str:
    assert not wake(url)
    return broker_circuit_breaker.known_down(url)


def test_both_sides_are_verified(server, certificates, process):
    process(certificates.settings())
    assert wake(server[0])
    assert brokers.depths(server[0], ["q"])


def test_a_consumer_gets_every_message_of_a_burst(server, certificates, process):
    """What TLS has decrypted already does not make a socket readable."""
    process(certificates.settings())
    assert all(wake(server[0]) for _ in range(200))
    options = {"ssl": broker_tls.options(server[0]), "transport_options": brokers.options(server[0])}
    found: list[int] = []
    with Connection(server[0], **options) as connection:
        heard = Consumer(connection, [brokers.queue("q")], prefetch_count=4, accept=["json"],
                         on_message=lambda message: (found.append(1), message.ack()))  # fmt: skip
        with heard:
            while len(found) < 200:
                connection.drain_events(timeout=SECONDS)  # raises when nothing comes


def test_a_worker_that_cannot_connect_says_what_to_do(server, strangers, tmp_path):
    settings = {
        "PATH": os.environ["PATH"], "STILLWATER_STATE": str(tmp_path), "STILLWATER_ROLE": "scheduler",
        "STILLWATER_BROKER_URL": server[0], "STILLWATER_LOG_FORMAT": "json", **strangers.settings(),
    }  # fmt: skip
    command = [sys.executable, "-m", "celery", "-A", "cloud.celery", "worker", "-P", "threads", "-n", "s@tls"]
    with (tmp_path / "log").open("wb") as out:
        worker = subprocess.Popen(command, cwd=env.ROOT, env=settings, stdout=out, stderr=out)
    try:
        expected = "TLS: the server's certificate is not signed by an authority in STILLWATER_TLS_CA"
        eventually("it says so", lambda: expected in (tmp_path / "log").read_text(), SECONDS)
    finally:
        worker.kill()
        worker.wait(SECONDS)
    assert "broker.tls_failed" in (tmp_path / "log").read_text()


def test_without_a_certificate_a_sender_is_refused(server, certificates, process):
    process({"STILLWATER_TLS_CA": certificates.settings()["STILLWATER_TLS_CA"]})
    assert why_down(server[0]) == "TLS: the other side requires a certificate: set STILLWATER_TLS_CA, _CERT and _KEY"


def test_plain_text_is_refused(server, certificates, process):
    process(certificates.settings())
    url = server[0].replace("amqps:", "amqp:").replace("rediss:", "redis:")
    assert not wake(url)
    forget()


def test_another_authority_is_refused_by_either_side(server, certificates, strangers, process):
    own, other = certificates.settings(), strangers.settings()
    process(own | {"STILLWATER_TLS_CA": other["STILLWATER_TLS_CA"]})
    expected = "TLS: the server's certificate is not signed by an authority in STILLWATER_TLS_CA"
    assert why_down(server[0]) == expected
    process(other | {"STILLWATER_TLS_CA": own["STILLWATER_TLS_CA"]})
    assert re.match("TLS: .*STILLWATER_TLS_CERT.*(another authority signed it|is not signed by)", why_down(server[0]))
    process({})  # the authorities of this machine do not know it either
    assert why_down(server[0]) == expected


def test_an_expired_certificate_is_named_and_its_renewal_needs_no_restart(server, certificates, process):
    url, read_certificates = server
    process(certificates.settings())
    certificates.expire("server", LOOPBACK)
    try:
        read_certificates()
        assert why_down(url).startswith("TLS: the server's certificate has expired: renew it with manage.py tls_cert")
    finally:
        certificates.renew("server", LOOPBACK)
        read_certificates()
    assert broker_circuit_breaker.wait_until_up(url, SECONDS)
    assert wake(url)

    forget()
    certificates.expire("client")
    try:
        assert re.match("TLS: .*STILLWATER_TLS_CERT.* expired.*: renew it with manage.py tls_certi", why_down(url))
    finally:
        certificates.renew("client")
    assert broker_circuit_breaker.wait_until_up(url, SECONDS)
    eventually("messages are sent again", lambda: wake(url), SECONDS, 0.1)
