"""PUT and DELETE /servers/{id}."""

from __future__ import annotations

import pytest

from cells.models import BuildRequest, InstanceMapping
from tests.api.servers import server, unplaced


def said(answer, status):
    assert answer.status_code == status, answer.content
    return next(iter(answer.json().values()))["message"]


def put(client, server_id, version="2.96", **changes):
    return client.send("put", f"/servers/{server_id}", {"server": changes}, version=version)


def test_what_is_changed_is_shown_and_stays(api, cells):
    server_id = server(cells["cell1"], "old")
    changes = {"name": "new", "description": "d", "accessIPv4": "192.0.2.1", "accessIPv6": "2001:db8::1",
               "OS-DCF:diskConfig": "AUTO"}  # fmt: skip
    answer = put(api, server_id, **changes, hostname="www.example.org")
    assert answer.status_code == 200
    for shown in (answer.json()["server"], api.get(f"/servers/{server_id}").json()["server"]):
        assert {key: shown[key] for key in changes} == changes
        assert shown["OS-EXT-SRV-ATTR:hostname"] == "www.example.org"
    assert put(api, server_id, description=None).json()["server"]["description"] is None
    assert put(api, server_id).status_code == 200  # nothing to change is no mistake


def test_an_address_that_is_written_at_length_is_taken_and_kept_short(api, cells):
    server_id = server(cells["cell1"])
    answer = put(api, server_id, accessIPv6="0000:0000:0000:0000:0000:babe:220.12.22.2")
    assert answer.status_code == 200, answer.content
    assert answer.json()["server"]["accessIPv6"] == "::babe:dc0c:1602"


def test_before_275_the_answer_is_the_server_without_extensions(api, admin, cells):
    server_id = server(cells["cell1"])
    old = put(admin, server_id, "2.74", name="b").json()["server"]
    assert not [name for name in old if name.startswith(("OS-EXT-", "OS-SRV-USG", "os-extended"))]
    assert not old.keys() & {"config_drive", "key_name", "host_status"}
    assert old.keys() >= {"id", "name", "status", "OS-DCF:diskConfig", "locked", "description", "server_groups"}
    new = put(admin, server_id, "2.75", name="b").json()["server"]
    assert new == admin.get(f"/servers/{server_id}", version="2.75").json()["server"]


REFUSED = [
    ({"description": "d"}, "2.18", "('description' was unexpected)"),
    ({"hostname": "ab"}, "2.89", "('hostname' was unexpected)"),
    ({"hostname": "a.b"}, "2.93", "Invalid input for field/attribute hostname"),
    ({"name": ""}, "2.96", "Invalid input for field/attribute name"),
    ({"name": "x" * 256}, "2.96", "Invalid input for field/attribute name"),
    ({"name": None}, "2.96", "Invalid input for field/attribute name"),
    ({"accessIPv4": "x"}, "2.96", "'x' is not a 'ipv4'"),
    ({"accessIPv6": "x"}, "2.96", "'x' is not a 'ipv6'"),
    ({"status": "ACTIVE"}, "2.96", "('status' was unexpected)"),
]


def test_a_wrong_change_is_refused_and_changes_nothing(api, cells):
    server_id = server(cells["cell1"], "old")
    for changes, version, text in REFUSED:
        assert text in said(put(api, server_id, version, **changes), 400)
    for body in ({}, {"server": []}, [], {"server": {}, "more": 1}):
        assert api.send("put", f"/servers/{server_id}", body).status_code == 400
    assert api.get(f"/servers/{server_id}").json()["server"]["name"] == "old"


def test_only_members_of_the_project_change_a_server(reader, stranger, admin, cells):
    server_id = server(cells["cell1"])
    assert said(put(reader, server_id, name="b"), 403)
    assert said(put(stranger, server_id, name="b"), 404) == f"Instance {server_id} could not be found."
    assert put(admin, server_id, name="b").status_code == 200
    assert said(reader.delete(f"/servers/{server_id}"), 403)
    assert said(stranger.delete(f"/servers/{server_id}"), 404)


def test_a_server_without_a_cell_cannot_be_changed_yet(api, cells):
    assert said(put(api, unplaced(), name="b"), 409).endswith("is not ready")


def test_a_running_server_is_deleted_by_its_host_and_then_gone(api, cloud):
    server_id = cloud.boot(api)
    answer = api.delete(f"/servers/{server_id}")
    assert (answer.status_code, answer.content) == (204, b"")
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["OS-EXT-STS:task_state"]) == ("ACTIVE", "deleting")
    assert api.delete(f"/servers/{server_id}").status_code == 204  # twice is once
    cloud.work()
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert said(api.delete(f"/servers/{server_id}"), 404) == f"Instance {server_id} could not be found."
    assert cloud.used() == {"host1": (0, 0), "host2": (0, 0)}
    assert len([action for action in cloud.history(server_id) if action.action == "delete"]) == 1


def test_a_server_that_waits_for_a_cell_is_deleted_at_once(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert api.delete(f"/servers/{server_id}").status_code == 404
    assert api.get("/servers").json()["servers"] == []
    assert not BuildRequest.objects.exists()


def test_a_server_that_is_being_built_is_deleted(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    cloud.schedule()
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert cloud.used() == {"host1": (0, 0), "host2": (0, 0)}


def test_a_server_no_host_would_take_is_deleted(api, cloud):
    for host in cloud.hosts.values():
        host.driver.memory_mb = 0
    server_id = cloud.boot(api, availability_zone="nova", flavorRef=_giant())
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert (shown["status"], shown["fault"]["code"]) == ("ERROR", 500)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete


def _giant():
    from compute.models import Flavor

    Flavor.objects.create(flavor_id="giant", name="giant", vcpus=1, memory_mb=50000, disk_gb=50000, extra_specs={})
    return "giant"


def test_a_locked_server_is_the_admins_to_delete(api, admin, cells):
    server_id = server(cells["cell1"], locked_by="owner")
    assert said(api.delete(f"/servers/{server_id}"), 409) == f"Instance {server_id} is locked"
    assert admin.delete(f"/servers/{server_id}").status_code == 204


@pytest.mark.parametrize("server_id", ["nobody", "11111111-1111-4111-8111-111111111111"])
def test_what_does_not_exist_is_404(api, server_id):
    assert said(api.delete(f"/servers/{server_id}"), 404)
    assert said(put(api, server_id, name="b"), 404)


def test_a_server_in_a_down_cell_cannot_be_changed(api, cells):
    from cells import circuit_breaker

    server_id = server(cells["cell1"])
    circuit_breaker.record_failure(cells["cell1"].id, "away")
    answer = put(api, server_id, name="b")
    assert "Cell cell1 does not answer now" in said(answer, 503)
    assert answer.headers["Retry-After"] == "5"
