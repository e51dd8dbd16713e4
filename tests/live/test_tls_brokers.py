"""Brokers that accept TLS only, with certificates on both sides: what is refused, why, and how it comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from kombu import pools

from cells import broker_circuit_breaker, brokers
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
