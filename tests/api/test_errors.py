"""Whatever a client sends, the answer is a 4xx in Nova's shape, and never a 500."""

from __future__ import annotations

import json
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings, strategies

from cells.context import target_cell
from compute.models import Instance
from tests.api.servers import server
from tests.conftest import PROJECT, Api

REQUEST_ID = "req-11111111-2222-3333-4444-555555555555"
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def fault(answer, status, name):
    """The message of an error in Nova's shape."""
    assert answer.status_code == status, answer.content
    assert answer.headers["Content-Type"] == "application/json"
    body = answer.json()
    assert list(body) == [name], body
    assert body[name]["code"] == status
    return body[name]["message"]


def raw(api, path, body, kind="application/json", method="POST"):
    return api.generic(method, path, body, content_type=kind)


@pytest.mark.parametrize(
    "body",
    [b"{", b'{"server": {"name": }}', b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 5000,
     b'{"server":' * 500 + b"1" + b"}" * 500,
     b'{"server": {"name": "a\\u0000b"}}', b"nope", b"NaN", b'{"a": 1}{"b": 2}'],
)  # fmt: skip
def test_malformed_json_is_400(api, cells, body):
    server_id = server(cells["cell1"])
    for path in ("/servers", f"/servers/{server_id}/action", f"/servers/{server_id}/metadata"):
        assert fault(raw(api, path, body), 400, "badRequest").startswith("Malformed request body")


@pytest.mark.parametrize("body", ["[]", "1", '"x"', "null", "true", "{}", "", '[{"server": {}}]', '{"server": null}'])
def test_json_of_another_shape_is_400(api, cells, body):
    path = f"/servers/{server(cells['cell1'])}"
    for method, where in [("POST", "/servers"), ("POST", f"{path}/action"), ("PUT", path),
                          ("POST", f"{path}/metadata"), ("PUT", f"{path}/tags")]:  # fmt: skip
        fault(raw(api, where, body, method=method), 400, "badRequest")


def test_an_action_is_one_key_that_exists(api, cells):
    path = f"/servers/{server(cells['cell1'])}/action"
    two = api.send("post", path, {"os-start": None, "os-stop": None})
    assert fault(two, 400, "badRequest") == "Malformed request body"
    assert fault(api.send("post", path, {"fly": None}), 400, "badRequest") == "There is no such action: fly"
    assert "type" in fault(api.send("post", path, {"reboot": {"type": "MAYBE"}}), 400, "badRequest")
    fault(api.send("post", "/servers/nobody/action", {"os-start": None}), 404, "itemNotFound")


def test_a_body_of_5_mb_is_413(api):
    answer = api.send("post", "/servers", {"server": {"name": "x" * 5_000_000}})
    assert "too large" in fault(answer, 413, "overLimit")
    assert answer.headers["x-openstack-request-id"].startswith("req-")


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "application/x-www-form-urlencoded",
                                  "multipart/form-data; boundary=x"])  # fmt: skip
def test_another_content_type_is_415(api, cells, kind):
    path = f"/servers/{server(cells['cell1'])}/action"
    for where in ("/servers", path):
        assert "Unsupported Content-Type" in fault(raw(api, where, "a=b", kind), 415, "badMediaType")


def test_json_with_a_charset_is_json(api):
    answer = raw(api, "/servers", "{}", "application/json; charset=utf-8")
    assert fault(answer, 400, "badRequest") == "'server' is a required property"


@pytest.mark.parametrize("wrong", ["abc", "2", "2.x", "v2.1", "2.01", "-2.1", "2." + "9" * 5000, "1.2.3"])
def test_a_microversion_of_bad_format_is_400(api, wrong):
    text = f"API Version String {wrong} is of invalid format. Must be of format MajorNum.MinorNum."
    assert fault(api.get("/servers", version=wrong), 400, "badRequest") == text


@pytest.mark.parametrize("wrong", ["2.0", "1.1", "2.97", "2.999", "3.1", "2.99999999"])
def test_a_microversion_out_of_range_is_406(api, wrong):
    text = f"Version {wrong} is not supported by the API. Minimum is 2.1 and maximum is 2.96."
    assert fault(api.get("/servers", version=wrong), 406, "computeFault") == text


@pytest.mark.parametrize(
    ("headers", "negotiated"),
    [
        ({}, "2.1"),
        ({"HTTP_OPENSTACK_API_VERSION": "compute latest"}, "2.96"),
        ({"HTTP_OPENSTACK_API_VERSION": "Compute 2.5"}, "2.5"),
        ({"HTTP_OPENSTACK_API_VERSION": "volume 3.1, compute 2.7"}, "2.7"),
        ({"HTTP_OPENSTACK_API_VERSION": "volume 3.1"}, "2.1"),
        ({"HTTP_X_OPENSTACK_NOVA_API_VERSION": "2.30"}, "2.30"),
        ({"HTTP_X_OPENSTACK_NOVA_API_VERSION": "2.30", "HTTP_OPENSTACK_API_VERSION": "compute 2.31"}, "2.31"),
    ],
)
def test_the_microversion_is_answered_in_both_headers(api, headers, negotiated):
    answer = api.get("/servers", version="", **headers)
    assert answer.status_code == 200
    assert answer.headers["OpenStack-API-Version"] == f"compute {negotiated}"
    assert answer.headers["X-OpenStack-Nova-API-Version"] == negotiated
    assert {"OpenStack-API-Version", "X-OpenStack-Nova-API-Version"} <= set(answer.headers["Vary"].split(", "))


def test_errors_carry_the_version_headers_too(api):
    answer = api.get("/servers/nobody", version="2.50")
    assert (answer.status_code, answer.headers["OpenStack-API-Version"]) == (404, "compute 2.50")


def test_every_answer_has_a_request_id_and_a_good_one_of_the_client_is_kept(api):
    answer = api.get("/servers")
    assert answer.headers["x-openstack-request-id"] == answer.headers["x-compute-request-id"]
    kept = api.get("/servers", HTTP_X_OPENSTACK_REQUEST_ID=REQUEST_ID)
    assert kept.headers["x-openstack-request-id"] == REQUEST_ID
    for wrong in ("mine", "req-1", f"{REQUEST_ID}\n", "req-" + "x" * 36, f"{REQUEST_ID}0"):
        answer = api.get("/servers", HTTP_X_OPENSTACK_REQUEST_ID=wrong)
        assert answer.headers["x-openstack-request-id"] not in (wrong, wrong.strip())


@pytest.mark.parametrize(
    "path", ["/nope", "/serverz", "/servers/a/b/c/d", "/os-agents", f"/{PROJECT}/nope", "//servers"]
)
def test_an_unknown_path_is_404_in_json(api, path):
    answer = api.get(f"/compute/v2.1{path}")
    assert fault(answer, 404, "itemNotFound") == "The resource could not be found."
    fault(api.send("post", f"/compute/v2.1{path}", {}), 404, "itemNotFound")


@pytest.mark.parametrize(("method", "path"), [("put", "/servers"), ("delete", "/servers"), ("post", "/servers/detail"),
                                              ("post", "/servers/x"), ("get", "/servers/x/action"),
                                              ("patch", "/servers/x"), ("delete", "/servers/x/ips")])  # fmt: skip
def test_a_wrong_method_is_405(api, method, path):
    answer = api.send(method, path, {})
    fault(answer, 405, "badMethod")
    assert answer.headers["Allow"]


def test_the_project_may_be_in_the_url_when_it_is_ones_own(api, cells):
    server_id = server(cells["cell1"])
    assert len(api.get(f"/{PROJECT}/servers").json()["servers"]) == 1
    assert api.get(f"/{PROJECT}/servers/{server_id}").json()["server"]["id"] == server_id
    other = "b" * 32
    assert fault(api.get(f"/{other}/servers/detail"), 400, "badRequest") == (
        f"Malformed request URL: URL's project_id '{other}' doesn't match Context's project_id '{PROJECT}'"
    )


@pytest.mark.parametrize("token", [None, "nonsense", "x" * 3000, "ü"])
def test_without_a_good_token_everything_is_401(cells, token):
    nobody = Api()
    headers = {} if token is None else {"HTTP_X_AUTH_TOKEN": token}
    for path in ("/servers", "/servers/detail", "/servers/x", "/nope"):
        answer = nobody.get(path, **headers)
        fault(answer, 401, "unauthorized")
        assert answer.headers["WWW-Authenticate"].startswith("Keystone uri=")
    fault(nobody.send("post", "/servers", {}, **headers), 401, "unauthorized")


def test_the_versions_documents_need_no_token(cells):
    nobody = Api()
    for path in ("/compute", "/compute/", "/compute/v2.1", "/compute/v2.1/"):
        assert nobody.get(path).status_code == 200


NASTY = ["\0", "a\0b", "%", "'", '"; DROP TABLE compute_instance;--', "\U0001f600", "\u202e", "x" * 10_000, "../..",
         "\r\n", "[[a]]", "${x}", "-1", "1e999", "null", " "]  # fmt: skip


def test_nasty_text_in_paths_is_a_4xx(api, cells):
    path = f"/servers/{server(cells['cell1'])}"
    for text in NASTY:
        told = quote(text, safe="")
        for where in (f"/servers/{told}", f"{path}/metadata/{told}", f"{path}/tags/{told}",
                      f"{path}/os-instance-actions/{told}", f"{path}/ips/{told}", f"/{told}/servers"):  # fmt: skip
            answer = api.get(where)
            assert 400 <= answer.status_code < 500 or (text == " " and answer.status_code < 500), (where[:99], answer)
            assert answer.headers["Content-Type"].startswith("application/json")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python's, about a regular expression that may change meaning
def test_nasty_text_in_queries_and_bodies_is_no_500(api, admin, cells):
    server_id = server(cells["cell1"])
    for text in NASTY:
        for name in (
            "name",
            "ip",
            "status",
            "tags",
            "limit",
            "marker",
            "sort_key",
            "changes-since",
            "image",
            "power_state",
        ):
            for client in (api, admin):
                assert client.get("/servers", {name: text}).status_code < 500, (name, text[:99])
        for body in ({"server": {"name": text}}, {text: {}}, {"metadata": {text: text}}, {"os-getConsoleOutput": text}):
            for path in ("/servers", f"/servers/{server_id}/action", f"/servers/{server_id}/metadata"):
                assert api.send("post", path, body).status_code < 500, (path, str(body)[:99])


scalars = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False)
)
texts = strategies.text(max_size=20)
values = strategies.recursive(
    scalars | texts,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
SERVER_KEYS = [
    "name",
    "flavorRef",
    "imageRef",
    "networks",
    "metadata",
    "min_count",
    "max_count",
    "tags",
    "user_data",
    "key_name",
    "availability_zone",
    "block_device_mapping_v2",
    "security_groups",
    "hostname",
    "config_drive",
    "host",
]
ACTION_KEYS = [
    "os-start",
    "os-stop",
    "reboot",
    "pause",
    "suspend",
    "lock",
    "unlock",
    "createImage",
    "os-resetState",
    "os-getConsoleOutput",
    "resume",
    "unpause",
]


@given(body=values | strategies.dictionaries(strategies.sampled_from(SERVER_KEYS), values).map(lambda s: {"server": s}))
@quick
def test_no_body_of_a_new_server_is_a_500(api, body):
    assert raw(api, "/servers", json.dumps(body)).status_code < 500


@given(good=strategies.dictionaries(strategies.sampled_from(SERVER_KEYS), values, min_size=1, max_size=2))
@quick
def test_no_wrong_field_in_a_good_body_is_a_500(api, cloud, good):
    body = cloud.body()
    body["server"] |= good
    assert raw(api, "/servers", json.dumps(body)).status_code < 500


@given(body=values | strategies.dictionaries(strategies.sampled_from(ACTION_KEYS), values, min_size=1, max_size=1))
@quick
def test_no_body_of_an_action_is_a_500(admin, cells, body):

    with target_cell(cells["cell1"]):
        found = Instance.objects.values_list("uuid", flat=True).first()
    server_id = found or server(cells["cell1"], host="nowhere")
    answer = raw(admin, f"/servers/{server_id}/action", json.dumps(body))
    assert answer.status_code < 500 or answer.status_code == 503, answer.content


QUERY_KEYS = [
    "name",
    "status",
    "limit",
    "marker",
    "sort_key",
    "sort_dir",
    "tags",
    "tags-any",
    "not-tags",
    "not-tags-any",
    "ip",
    "changes-since",
    "changes-before",
    "all_tenants",
    "deleted",
    "locked",
    "image",
    "flavor",
    "host",
    "created_at",
    "power_state",
    "config_drive",
    "project_id",
    "uuid",
    "progress",
    "launched_at",
    "description",
]


@given(query=strategies.lists(strategies.tuples(strategies.sampled_from(QUERY_KEYS) | texts, texts), max_size=4),
       minor=strategies.integers(1, 96))  # fmt: skip
@quick
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_query_of_a_list_is_a_500(api, admin, query, minor):
    told = "&".join(f"{quote(name)}={quote(value)}" for name, value in query)
    for client in (api, admin):
        assert client.get(f"/servers/detail?{told}", version=f"2.{minor}").status_code < 500


@pytest.mark.parametrize("tag", ["a\r\nX-Evil: 1", "\n", "a\x7fb"], ids=repr)
def test_a_tag_with_a_line_break_in_its_path_is_400_and_not_kept(tag, api, cells):
    path = f"/servers/{server(cells['cell1'])}/tags"
    said = fault(api.put(f"{path}/{quote(tag)}"), 400, "badRequest")
    assert said.startswith("Invalid input for field/attribute tag.")
    fault(api.send("put", path, {"tags": [tag]}), 400, "badRequest")
    assert api.get(path).json() == {"tags": []}


def test_a_tag_of_any_other_letters_has_a_location_that_leads_to_it(api, cells):
    path = f"/servers/{server(cells['cell1'])}/tags"
    made = api.put(f"{path}/{quote('日本 ü?')}")
    assert made.status_code == 201
    assert made["Location"].endswith(f"{path}/%E6%97%A5%E6%9C%AC%20%C3%BC%3F")
    assert api.get(urlsplit(made["Location"]).path).status_code == 204


@pytest.mark.parametrize("wrong", ["\n", "1\n", "-1\n"], ids=repr)
def test_a_number_with_a_line_break_is_400(wrong, admin, api, cloud):
    for field in ("min_count", "max_count"):
        said = fault(api.send("post", "/servers", cloud.body(**{field: wrong})), 400, "badRequest")
        assert said.startswith(f"Invalid input for field/attribute {field}.")
    for field in ("ram", "vcpus", "disk", "swap", "OS-FLV-EXT-DATA:ephemeral", "rxtx_factor", "id"):
        flavor = {"name": "f", "ram": 1, "vcpus": 1, "disk": 1} | {field: wrong}
        said = fault(admin.send("post", "/flavors", {"flavor": flavor}), 400, "badRequest")
        assert said.startswith(f"Invalid input for field/attribute {field}.")
    server_id = cloud.boot(api)
    for body in ({"createBackup": {"name": "b", "backup_type": "daily", "rotation": wrong}},
                 {"os-getConsoleOutput": {"length": wrong}}):  # fmt: skip
        fault(admin.send("post", f"/servers/{server_id}/action", body), 400, "badRequest")
    fault(admin.send("put", f"/os-quota-sets/{PROJECT}", {"quota_set": {"cores": wrong}}), 400, "badRequest")
