"""What goes wrong is said as Nova says it: on the wire, and by the stock client to the person at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.live.cloud import Cloud

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
NOBODY = "11111111-2222-4333-8444-555555555555"
BOOT = ("server", "create", "--nic", "none", "--wait")


def boot_body(**other: Any) -> str:
    """A request to boot that lacks nothing but its image."""
    server = {"name": "x", "flavorRef": "42", "imageRef": NOBODY, "networks": "none"}
    return json.dumps({"server": server | other})


@pytest.fixture(scope="module")
def stranger(fake_cloud: Cloud) -> tuple[str, ...]:
    """Words that make the client a user of a project that is not demo."""
    admin = fake_cloud.sdk(admin=True)
    project = admin.identity.create_project(name="errors", domain_id="default")
    user = admin.identity.create_user(name="stranger", password="stranger-secret", domain_id="default")
    role = admin.identity.find_role("member")
    admin.identity.assign_project_role_to_user(project, user, role)
    return ("--os-username", "stranger", "--os-password", "stranger-secret", "--os-project-name", "errors")


@pytest.fixture(scope="module")
def server(fake_cloud: Cloud) -> Iterator[str]:
    """A server of demo's."""
    uuid = fake_cloud.openstack(*BOOT, "--image", "micro", "--flavor", "m1.nano", "errors")["id"]
    yield uuid
    fake_cloud.do("server", "delete", "--wait", uuid)


@pytest.fixture
def few(fake_cloud: Cloud, server: str) -> Iterator[int]:
    """A quota with room for one more server."""
    room = fake_cloud.sdk().compute.get_limits().absolute.instances_used + 1
    fake_cloud.do("quota", "set", "--instances", str(room), "demo", admin=True)
    yield room
    fake_cloud.do("quota", "set", "--instances", "10", "demo", admin=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--os-password", "wrong", "server", "list"),
            "The request you have made requires authentication. (HTTP 401)",
        ),
        (
            ("--os-project-name", "nowhere", "server", "list"),
            "The request you have made requires authentication. (HTTP 401)",
        ),
        ((*BOOT, "--image", "micro", "--flavor", "huge", "x"), "No Flavor found for huge"),
        ((*BOOT, "--image", "windows", "--flavor", "m1.nano", "x"), "No Image found for windows"),
        (("server", "show", NOBODY), f"No Server found for {NOBODY}"),
        (
            ("--os-compute-api-version", "2.999", "server", "list"),
            "the cloud only supports a minimum of 2.1 and a maximum of 2.96",
        ),
    ],
)
def test_the_stock_client_says_what_is_wrong(fake_cloud, words, said):
    refused(fake_cloud, words, said)


def test_the_stock_client_says_what_the_quota_is(fake_cloud, few):
    words = (*BOOT, "--image", "micro", "--flavor", "m1.nano", "--min", "2", "--max", "2", "x")
    said = f"Quota exceeded for instances: Requested 2, but already used {few - 1} of {few} instances"
    refused(fake_cloud, words, f"403: Client Error for url: {fake_cloud.url}/compute/v2.1/servers, {said}")


def test_another_projects_server_is_not_there(fake_cloud, stranger, server):
    assert fake_cloud.openstack(*stranger, "server", "list") in (None, [])
    refused(fake_cloud, (*stranger, "server", "list", "--all-projects"), "Policy doesn't allow")
    refused(fake_cloud, (*stranger, "server", "show", server), f"No Server found for {server}")
    refused(fake_cloud, (*stranger, "server", "delete", server), f"No Server found for {server}")


def test_what_only_an_administrator_may_do_is_refused(fake_cloud):
    said = "Policy doesn't allow os_compute_api:os-services:list to be performed."
    refused(fake_cloud, ("compute", "service", "list"), said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"server": ', "Malformed request body"),
        ("[]", "is not of type 'object'"),
        ("", "'server' is a required property"),
        ('{"servers": {}}', "'server' is a required property"),
        ('{"server": {"name": "x"}}', "'flavorRef' is a required property"),
        (boot_body(name=5), "Invalid input for field/attribute name. Value: 5. 5 is not of type 'string'"),
        (boot_body(min_count="many"), "Invalid input for field/attribute min_count. Value: many."),
        (boot_body(colour="red"), "Additional properties are not allowed ('colour' was unexpected)"),
        (boot_body(flavorRef="huge"), "Flavor huge could not be found."),
        (boot_body(), "Can not find requested image"),
    ],
)
def test_a_body_that_makes_no_sense_is_400(fake_cloud, body, said):
    error = fault(call(fake_cloud, "POST", "/servers", data=body), 400, "badRequest")
    assert said in error["message"]


def test_wrong_types_in_an_action_are_400(fake_cloud, server):
    answer = call(fake_cloud, "POST", f"/servers/{server}/action", data='{"reboot": {"type": "WARM"}}')
    assert "'WARM' is not one of" in fault(answer, 400, "badRequest")["message"]
    answer = call(fake_cloud, "POST", f"/servers/{server}/action", data='{"explode": null}')
    assert fault(answer, 400, "badRequest")["message"] == "There is no such action: explode"


def test_five_megabytes_are_too_many(fake_cloud):
    fault(call(fake_cloud, "POST", "/servers", data=b"x" * 5_000_000), 413, "overLimit")


def test_a_microversion_nobody_has_is_406(fake_cloud):
    answer = call(fake_cloud, "GET", "/servers", version="compute 2.999")
    said = "Version 2.999 is not supported by the API. Minimum is 2.1 and maximum is 2.96."
    assert fault(answer, 406, "computeFault")["message"] == said
    fault(call(fake_cloud, "GET", "/servers", version="compute latest-ish"), 400, "badRequest")


def test_a_missing_server_is_404_and_a_wrong_state_409(fake_cloud, server):
    answer = call(fake_cloud, "GET", f"/servers/{NOBODY}")
    assert fault(answer, 404, "itemNotFound")["message"] == f"Instance {NOBODY} could not be found."
    answer = call(fake_cloud, "POST", f"/servers/{server}/action", data='{"os-start": null}')
    said = f"Cannot 'start' instance {server} while it is in vm_state active"
    assert fault(answer, 409, "conflictingRequest")["message"] == said


def test_no_token_and_a_forged_one_are_401(fake_cloud):
    for headers in ({}, {"X-Auth-Token": "gAAAAABforged"}):
        answer = requests.get(f"{fake_cloud.url}/compute/v2.1/servers", headers=headers, timeout=30)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Keystone uri=")


def refused(cloud: Cloud, words: tuple[str, ...], said: str) -> None:
    """The client ends with an error and these words, in one line and without a traceback."""
    done = cloud.client(*words)
    assert done.returncode == 1, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def call(
    cloud: Cloud, method: str, path: str, data: Any = None, version: str = "compute 2.96"
) -> requests.Response:
    """One request as demo."""
    token = cloud.sdk().auth_token
    headers = {"X-Auth-Token": token, "OpenStack-API-Version": version, "Content-Type": "application/json"}
    return requests.request(method, f"{cloud.url}/compute/v2.1{path}", headers=headers, data=data, timeout=60)


def fault(answer: requests.Response, status: int, kind: str) -> dict[str, Any]:
    """The inside of an error body of Nova's shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["x-openstack-request-id"].startswith("req-")
    body = answer.json()
    assert list(body) == [kind]
    assert body[kind]["code"] == status
    return body[kind]
