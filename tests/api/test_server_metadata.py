"""/servers/{id}/metadata, /tags and /ips."""

from __future__ import annotations

import pytest

from compute.placement import quota
from tests.api.servers import server
from tests.conftest import PROJECT


def said(answer, status):
    assert answer.status_code == status, answer.content
    return next(iter(answer.json().values()))["message"]


@pytest.fixture
def path(cells):
    """A running server's path."""
    return f"/servers/{server(cells['cell1'], metadata={'a': '1'}, tags=',red,')}"


def test_metadata_is_added_replaced_and_removed(api, path):
    assert api.get(f"{path}/metadata").json() == {"metadata": {"a": "1"}}
    added = api.send("post", f"{path}/metadata", {"metadata": {"b": "2"}})
    assert (added.status_code, added.json()) == (200, {"metadata": {"a": "1", "b": "2"}})
    one = api.send("put", f"{path}/metadata/b", {"meta": {"b": "3"}})
    assert (one.status_code, one.json()) == (200, {"meta": {"b": "3"}})
    assert api.get(f"{path}/metadata/b").json() == {"meta": {"b": "3"}}
    gone = api.delete(f"{path}/metadata/b")
    assert (gone.status_code, gone.content) == (204, b"")
    replaced = api.send("put", f"{path}/metadata", {"metadata": {"c": "4"}})
    assert (replaced.status_code, replaced.json()) == (200, {"metadata": {"c": "4"}})
    assert api.get(path).json()["server"]["metadata"] == {"c": "4"}
    assert api.send("put", f"{path}/metadata", {"metadata": {}}).json() == {"metadata": {}}


def test_a_key_that_is_not_there_is_404(api, path):
    assert said(api.get(f"{path}/metadata/nope"), 404) == "Metadata item was not found"
    assert said(api.delete(f"{path}/metadata/nope"), 404) == "Metadata item was not found"


WRONG = [
    ("post", "/metadata", {}),
    ("post", "/metadata", {"metadata": []}),
    ("post", "/metadata", {"metadata": {"k": 1}}),
    ("post", "/metadata", {"metadata": {"": "v"}}),
    ("post", "/metadata", {"metadata": {"k": "x" * 256}}),
    ("post", "/metadata", {"metadata": {"k/": "v"}}),
    ("post", "/metadata", {"metadata": {"k": "a\u0000b"}}),
    ("put", "/metadata", {"meta": {}}),
    ("put", "/metadata/a", {"meta": {"b": "1"}}),
    ("put", "/metadata/a", {"meta": {"a": "1", "b": "2"}}),
    ("put", "/metadata/a", {"meta": {}}),
    ("put", "/tags", {"tags": "red"}),
    ("put", "/tags", {"tags": ["a,b"]}),
    ("put", "/tags", {"tags": [str(n) for n in range(51)]}),
    ("put", "/tags/a,b", None),
    ("put", f"/tags/{'x' * 61}", None),
]


def test_what_makes_no_sense_is_400_and_changes_nothing(api, path):
    for method, what, body in WRONG:
        assert said(api.send(method, f"{path}{what}", body), 400), (method, what, body)
    assert api.get(f"{path}/metadata").json() == {"metadata": {"a": "1"}}
    assert api.get(f"{path}/tags").json() == {"tags": ["red"]}


def test_more_keys_than_the_quota_are_403(api, path):
    quota.set_limits(PROJECT, {"metadata_items": 2})
    assert api.send("post", f"{path}/metadata", {"metadata": {"b": "2"}}).status_code == 200
    answer = api.send("post", f"{path}/metadata", {"metadata": {"c": "3"}})
    assert said(answer, 403) == "Maximum number of metadata items exceeds 2"
    assert api.send("put", f"{path}/metadata/c", {"meta": {"c": "3"}}).status_code == 403


def test_tags_are_set_listed_and_removed(api, path):
    assert api.get(f"{path}/tags").json() == {"tags": ["red"]}
    new = api.put(f"{path}/tags/blue")
    assert (new.status_code, new.headers["Location"].endswith(f"{path}/tags/blue")) == (201, True)
    assert api.put(f"{path}/tags/blue").status_code == 204
    assert api.get(f"{path}/tags/blue").status_code == 204
    assert api.delete(f"{path}/tags/red").status_code == 204
    assert api.get(f"{path}/tags").json() == {"tags": ["blue"]}
    assert api.send("put", f"{path}/tags", {"tags": ["b", "a", "b"]}).json() == {"tags": ["b", "a"]}
    assert api.delete(f"{path}/tags").status_code == 204
    assert api.get(path).json()["server"]["tags"] == []


def test_a_tag_that_is_not_there_is_404(api, path):
    assert said(api.get(f"{path}/tags/nope"), 404).endswith("has no tag 'nope'")
    assert said(api.delete(f"{path}/tags/nope"), 404).endswith("has no tag 'nope'")


def test_the_51st_tag_is_refused(api, path):
    assert api.send("put", f"{path}/tags", {"tags": [str(n) for n in range(50)]}).status_code == 200
    assert "exceeded the per-server limit 50" in said(api.put(f"{path}/tags/more"), 400)


def test_tags_came_with_226(api, path):
    assert api.get(f"{path}/tags", version="2.25").status_code == 404
    assert api.get(f"{path}/tags", version="2.26").status_code == 200


CHANGES = [
    ("post", "/metadata", {"metadata": {"b": "2"}}, "update metadata"),
    ("put", "/metadata", {"metadata": {"b": "2"}}, "update metadata"),
    ("put", "/metadata/a", {"meta": {"a": "2"}}, "update metadata"),
    ("delete", "/metadata/a", None, "delete metadata"),
    ("put", "/tags", {"tags": ["a"]}, "update tags"),
    ("put", "/tags/a", None, "update tags"),
    ("delete", "/tags/red", None, "delete tags"),
    ("delete", "/tags", None, "delete tags"),
]


def test_a_server_in_error_or_being_built_keeps_what_is_written_on_it(api, cells):
    for vm_state in ("error", "building"):
        server_id = server(cells["cell1"], vm_state=vm_state, metadata={"a": "1"}, tags=",red,")
        for method, what, body, name in CHANGES:
            answer = api.send(method, f"/servers/{server_id}{what}", body)
            expected = f"Cannot '{name}' instance {server_id} while it is in vm_state {vm_state}"
            assert said(answer, 409) == expected


def test_a_locked_servers_metadata_is_the_admins_to_change(api, admin, cells):
    path = f"/servers/{server(cells['cell1'], metadata={'a': '1'}, locked_by='owner')}"
    body = {"metadata": {"b": "2"}}
    assert said(api.send("post", f"{path}/metadata", body), 409).endswith("is locked")
    assert said(api.delete(f"{path}/metadata/a"), 409).endswith("is locked")
    assert admin.send("post", f"{path}/metadata", body).status_code == 200


def test_a_reader_reads_and_a_stranger_sees_nothing(reader, stranger, path):
    for what in ("/metadata", "/metadata/a", "/tags", "/ips"):
        assert reader.get(f"{path}{what}").status_code == 200
    assert reader.get(f"{path}/tags/red").status_code == 204
    for method, what, body, _ in CHANGES:
        assert said(reader.send(method, f"{path}{what}", body), 403).startswith("Policy doesn't allow")
        assert said(stranger.send(method, f"{path}{what}", body), 404)


def test_addresses_are_listed_without_their_extras(api, cells):
    addresses = {"net": [{"version": 4, "addr": "10.0.2.15", "OS-EXT-IPS:type": "fixed"}]}
    path = f"/servers/{server(cells['cell1'], addresses=addresses)}"
    assert api.get(f"{path}/ips").json() == {"addresses": {"net": [{"version": 4, "addr": "10.0.2.15"}]}}
    assert api.get(f"{path}/ips/net").json() == {"net": [{"version": 4, "addr": "10.0.2.15"}]}
    assert said(api.get(f"{path}/ips/nope"), 404) == "Instance is not a member of specified network"
