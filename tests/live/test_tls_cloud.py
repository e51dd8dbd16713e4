"""A cloud whose databases, brokers and API accept TLS only: processes, images of hosts, clients, a drain."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from deploy.local import clients, envfiles
from deploy.local.ports import any_free
from deploy.local.state import DATABASES, DOMAINS
from tests import stock
from tests.live.cloud import Cloud, eventually
from tests.live.gunicorns import Api, ask_on, connect
from tests.machine import fair
from tests.servers import postgres, rabbitmq
from tests.servers.certificates import LOOPBACK, Certificates

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
PARTS = {"sslrootcert": "CA", "sslcert": "CERT", "sslkey": "KEY"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def database(certificates) -> Iterator[postgres.Server]:
    """A PostgreSQL for all databases; it refuses plain connections, and clients without a certificate."""
    server = postgres.Server(*postgres.FORGETFUL)
    try:
        server.serve_tls(certificates.folder / "server")
        server.start()
        files = certificates.settings()
        server.client = {name: files[f"STILLWATER_TLS_{part}"] for name, part in PARTS.items()}
        for name in DATABASES:
            server.create(name)
        yield server
    finally:
        server.stop()
        server.remove()


@pytest.fixture(scope="module")
def cloud(certificates, database) -> Iterator[Cloud]:
    """Simulated hosts. `cloud.secure_port`: where hosts and clients find the API, by https."""
    with rabbitmq.server(home=certificates.folder / "server") as broker:
        port = any_free()
        one = Cloud(
            "fake", STILLWATER_PUBLIC_URL=f"https://127.0.0.1:{port}", **certificates.settings(),
            **{envfiles.database_variable(name): f"{database.url}/{name}" for name in DATABASES},
            **{envfiles.broker_variable(domain): broker.url(domain) for domain in DOMAINS},
        )  # fmt: skip
        one.secure_port = port
        with one:
            yield one


@pytest.fixture(scope="module")
def context(certificates) -> ssl.SSLContext:
    """What a client verifies: the API's certificate; it has none itself."""
    return ssl.create_default_context(cafile=str(certificates.folder / "ca.crt"))


@pytest.fixture(scope="module")
def own_files(certificates, tmp_path_factory) -> dict[str, str]:
    """The TLS files of the API, which tests replace."""
    home = tmp_path_factory.mktemp("api")
    for part, path in certificates.settings("server").items():
        (home / part).write_bytes(Path(path).read_bytes())
        (home / part).chmod(0o600)
    return {part: str(home / part) for part in certificates.settings("server")}


@contextmanager
def secure_api(cloud: Cloud, port: int, context: ssl.SSLContext, files: dict[str, str], log: Path) -> Iterator[Api]:
    """An API that serves https."""
    one = Api(cloud, log, port=port, context=context, **files, STILLWATER_API_TLS="on")
    try:
        yield one.wait_until_ready()
    finally:
        one.end()


@pytest.fixture(scope="module")
def api(cloud, context, own_files, tmp_path_factory) -> Iterator[Api]:
    """The one that hosts and clients use."""
    with secure_api(cloud, cloud.secure_port, context, own_files, tmp_path_factory.mktemp("log") / "api") as one:
        yield one


def openstack(cloud: Cloud, *words: str, **settings: str) -> Any:
    """The stock client, by https."""
    environment = {"OS_CACERT": "", "PATH": os.environ["PATH"], "HOME": str(cloud.directory)} | settings
    login = {
        "AUTH_URL": f"https://127.0.0.1:{cloud.secure_port}/identity/v3", "USERNAME": "demo", "PROJECT_NAME": "demo",
        "PASSWORD": clients.password_file(cloud.state, "demo").read_text().strip(), "USER_DOMAIN_ID": "default",
        "PROJECT_DOMAIN_ID": "default", "IDENTITY_API_VERSION": "3",
    }  # fmt: skip
    environment |= {f"OS_{name}": value for name, value in login.items()}
    return stock.run(*words, env=environment, seconds=120)


def token(api: Api, cloud: Cloud) -> str:
    user = {"name": "demo", "domain": {"id": "default"},
            "password": clients.password_file(cloud.state, "demo").read_text().strip()}  # fmt: skip
    scope = {"project": {"name": "demo", "domain": {"id": "default"}}}
    body = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}}
    answer = api.ask("/identity/v3/auth/tokens", "POST", body)
    assert answer.status == 201, answer.text
    return str(answer.headers["X-Subject-Token"])


def test_a_server_boots_and_every_connection_of_the_processes_is_encrypted(api, cloud, certificates, database):
    """The host fetches the image from the API by https; RabbitMQ has no plain listener."""
    authority = str(certificates.folder / "ca.crt")
    words = ("server", "create", "--flavor", "m1.nano", "--image", "micro", "--nic", "none", "--wait", "a")
    made = openstack(cloud, *words, OS_CACERT=authority)
    assert made.returncode == 0, made.stderr
    assert "ACTIVE" in made.stdout
    with psycopg.connect(f"{database.url}/postgres", sslmode="verify-full", **database.client) as connection:
        rows = connection.execute(
            "SELECT datname, ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE usename = 'stillwater' AND datname <> 'postgres'"
        ).fetchall()
    assert {name for name, _, _ in rows} >= {"global", "cell1", "cell2"}
    assert {(encrypted, who) for _, encrypted, who in rows} == {(True, "/CN=client"), (True, "/CN=server")}


def test_a_client_that_does_not_know_the_authority_is_told_so(api, cloud):
    refused = openstack(cloud, "server", "list")
    assert refused.returncode != 0
    assert "certificate verify failed" in refused.stderr
    with pytest.raises(requests.exceptions.SSLError, match="certificate verify failed"):
        requests.get(f"https://127.0.0.1:{api.port}/healthz", timeout=30)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(f"http://127.0.0.1:{api.port}/healthz", timeout=30)
    eventually("the API says who failed", lambda: len(api.events("api.handshake_failed")) >= 3, 10)
    assert any("alert unknown ca" in event["error"] for event in api.events("api.handshake_failed"))


def test_a_host_that_does_not_trust_the_api_says_so_and_boots_when_it_does(api, cloud, own_files, tmp_path):
    """The API has an expired certificate; the build waits and ends once it is renewed."""
    other = Certificates(tmp_path / "tls")
    kept = {part: Path(path).read_bytes() for part, path in own_files.items()}
    other.expire("server", LOOPBACK)
    who = {"X_Auth_Token": token(api, cloud)}
    facts = {"name": "fresh", "disk_format": "raw", "container_format": "bare"}
    image = api.ask("/image/v2/images", "POST", facts, **who).json["id"]
    data = requests.put(
        f"https://127.0.0.1:{api.port}/image/v2/images/{image}/file", data=b"\0" * 512, timeout=30,
        headers={"X-Auth-Token": who["X_Auth_Token"], "Content-Type": "application/octet-stream"},
        verify=own_files["STILLWATER_TLS_CA"],
    )  # fmt: skip
    assert data.status_code == 204
    try:
        for part, path in other.settings("server").items():
            if part != "STILLWATER_TLS_CA":
                Path(own_files[part]).write_bytes(Path(path).read_bytes())
        server = {"name": "b", "imageRef": image, "flavorRef": "42", "networks": "none"}
        asked = cloud.state.api_url + "/compute/v2.1/servers"
        headers = {"X-Auth-Token": who["X_Auth_Token"], "OpenStack-API-Version": "compute 2.96"}
        made = requests.post(asked, json={"server": server}, headers=headers, timeout=30)
        assert made.status_code == 202, made.text
        logs = [cloud.state.log(host) for host in cloud.state.hosts]
        expected = "cannot be fetched: TLS: the server's certificate"
        eventually("a host says why", lambda: any(expected in log.read_text() for log in logs), 60)
    finally:
        for part, path in own_files.items():
            Path(path).write_bytes(kept[part])
    url = f"{asked}/{made.json()['server']['id']}"
    show = lambda: requests.get(url, headers=headers, timeout=30).json()["server"]["status"]  # noqa: E731
    eventually("it is built", lambda: show() == "ACTIVE", 90)


def test_clients_that_only_connect_hold_up_nobody(api, context):
    """Browsers open connections before they have a request; a handshake that stays away is given up, too."""
    silent = [socket.create_connection(("127.0.0.1", api.port)) for _ in range(40)]
    for one in silent:
        one.sendall(b"\x16")  # the first byte of a handshake, and no more
    greeted = [context.wrap_socket(socket.create_connection(("127.0.0.1", api.port)), server_hostname="127.0.0.1")
               for _ in range(64)]  # fmt: skip
    asked = time.monotonic()
    assert api.ask("/healthz").status == 200
    assert time.monotonic() - asked < fair(2)
    for one in (*silent, *greeted):
        one.close()


def test_a_renewed_certificate_is_shown_to_the_next_client_and_half_a_renewal_to_none(api, own_files, certificates):
    kept = {part: Path(path).read_bytes() for part, path in own_files.items()}
    first = shown(api)
    certificates.renew("server", LOOPBACK)
    renewed = {part: Path(path).read_bytes() for part, path in certificates.settings("server").items()}
    try:
        Path(own_files["STILLWATER_TLS_CERT"]).write_bytes(renewed["STILLWATER_TLS_CERT"])  # the key comes later
        assert shown(api) == first
        assert api.events("tls.renewal_failed")
        Path(own_files["STILLWATER_TLS_KEY"]).write_bytes(renewed["STILLWATER_TLS_KEY"])
        assert shown(api) != first
    finally:
        for part, path in own_files.items():
            Path(path).write_bytes(kept[part])


def test_an_answer_ends_as_tls_says(api, context):
    """Without the alert close_notify a client cannot tell an end from a cut (RFC 8446, section 6.1)."""
    plain = socket.create_connection(("127.0.0.1", api.port))
    with context.wrap_socket(plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(partial(client.recv, 4096), b""))  # SSLEOFError without the alert
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_drain_answers_what_it_has_and_refuses_the_next(cloud, context, own_files, tmp_path):
    with secure_api(cloud, any_free(), context, own_files, tmp_path / "log") as api:
        _drain(api, cloud)


def _drain(api: Api, cloud: Cloud) -> None:
    who = {"X_Auth_Token": token(api, cloud)}
    facts = {"name": "slow", "disk_format": "raw", "container_format": "bare"}
    image = api.ask("/image/v2/images", "POST", facts, **who).json["id"]
    kept, upload = connect(api.port, api.context), connect(api.port, api.context)
    for _ in range(20):
        assert ask_on(kept, "/healthz").status == 200  # one connection
    upload.putrequest("PUT", f"/image/v2/images/{image}/file")
    headers = {"X-Auth-Token": who["X_Auth_Token"], "Content-Type": "application/octet-stream"}
    for name, value in (headers | {"Content-Length": "1024"}).items():
        upload.putheader(name, value)
    upload.endheaders(b"\0" * 512)
    saving = partial(api.ask, f"/image/v2/images/{image}", **who)
    eventually("the upload has begun", lambda: saving().json["status"] == "saving", 30)
    api.send(signal.SIGTERM)
    eventually("it drains", lambda: len(api.events("api.draining")) == 2, 10, 0.02)

    late = ask_on(kept, "/compute/v2.1/servers", **who)
    assert (late.status, late.headers["Connection"]) == (503, "close")
    upload.send(b"\0" * 512)
    assert upload.getresponse().status == 204
    assert api.wait() == 0
    assert not api.events("api.request_cut")


def shown(api: Api) -> bytes:
    """The certificate that the API shows to a new client."""
    connection = connect(api.port, api.context)
    assert ask_on(connection, "/healthz").status == 200
    found = connection.sock.getpeercert(binary_form=True)
    connection.close()
    return found
