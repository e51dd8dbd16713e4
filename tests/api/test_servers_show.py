"""GET /servers/{id}: which fields there are at which microversion, and for whom."""

from __future__ import annotations

import hashlib

import pytest

from tests.api.servers import FLAVOR, server, unplaced
from tests.conftest import PROJECT

BASE = {
    "id", "name", "status", "tenant_id", "user_id", "metadata", "hostId", "image", "flavor", "created", "updated",
    "addresses", "accessIPv4", "accessIPv6", "links", "OS-DCF:diskConfig", "OS-EXT-AZ:availability_zone",
    "OS-EXT-STS:task_state", "OS-EXT-STS:vm_state", "OS-EXT-STS:power_state", "OS-SRV-USG:launched_at",
    "OS-SRV-USG:terminated_at", "os-extended-volumes:volumes_attached", "config_drive", "key_name", "progress",
}  # fmt: skip
ADMIN = {f"OS-EXT-SRV-ATTR:{name}" for name in ("host", "instance_name", "hypervisor_hostname")}
ADMIN_23 = {
    f"OS-EXT-SRV-ATTR:{name}"
    for name in ("hostname", "kernel_id", "launch_index", "ramdisk_id", "reservation_id", "root_device_name",
                 "user_data")
}  # fmt: skip
HOSTNAME = "OS-EXT-SRV-ATTR:hostname"
SINCE = [  # since, for everybody, for admins
    ("2.1", BASE, ADMIN),
    ("2.3", set(), ADMIN_23),
    ("2.9", {"locked"}, set()),
    ("2.16", set(), {"host_status"}),
    ("2.19", {"description"}, set()),
    ("2.26", {"tags"}, set()),
    ("2.47", set(), set()),
    ("2.63", {"trusted_image_certificates"}, set()),
    ("2.71", {"server_groups"}, set()),
    ("2.73", {"locked_reason"}, set()),
    ("2.90", {HOSTNAME}, set()),
    ("2.96", {"pinned_availability_zone"}, set()),
]


def fields_at(version, *, admin, detail=False):
    """Every field of the table up to a microversion."""
    minor = int(version[2:])
    found = set()
    for since, everybody, admins in SINCE:
        if int(since[2:]) <= minor:
            found |= everybody | (admins if admin else set())
    return found - ({"server_groups"} if detail else set())


def test_every_microversion_has_its_fields_and_no_others(api, admin, cells):
    server_id = server(cells["cell1"])
    minors = {int(since[2:]) for since, _, _ in SINCE}
    for minor in sorted(minors | {m - 1 for m in minors if m > 1}):
        version = f"2.{minor}"
        for who in (api, admin):
            is_admin = who is admin
            shown = who.get(f"/servers/{server_id}", version=version).json()["server"]
            assert shown.keys() == fields_at(version, admin=is_admin), version
            listed = who.get(f"/servers/detail?all_tenants={int(is_admin)}", version=version).json()["servers"][0]
            assert listed.keys() == fields_at(version, admin=is_admin, detail=True), version


def test_latest_is_the_newest_there_is(api, cells):
    server_id = server(cells["cell1"])
    answer = api.get(f"/servers/{server_id}", version="latest")
    assert answer.headers["OpenStack-API-Version"] == "compute 2.96"
    assert answer.json()["server"].keys() == fields_at("2.96", admin=False)


def test_the_flavor_is_a_link_and_since_247_a_copy(api, cells):
    server_id = server(cells["cell1"])
    flavor = api.get(f"/servers/{server_id}", version="2.46").json()["server"]["flavor"]
    assert flavor.keys() == {"id", "links"}
    assert flavor["links"][0]["href"].endswith("/compute/flavors/1")
    assert api.get(f"/servers/{server_id}", version="2.47").json()["server"]["flavor"] == FLAVOR


def test_values_are_written_as_nova_writes_them(admin, cells):
    server_id = server(
        cells["cell1"], "web", tags=",b,a,", metadata={"k": "v"}, locked_by="admin", locked_reason="audit",
        description="d", image_id="", key_name="k", config_drive=True, task_state="rebooting",
        pinned_availability_zone="nova", launch_index=3,
    )  # fmt: skip
    shown = admin.get(f"/servers/{server_id}").json()["server"]
    expected = {
        "name": "web", "status": "REBOOT", "tags": ["b", "a"], "metadata": {"k": "v"}, "locked": True,
        "locked_reason": "audit", "description": "d", "image": "", "key_name": "k", "config_drive": "True",
        "created": "2026-01-01T12:00:00Z", "updated": "2026-01-01T12:00:00Z", "addresses": {},
        "OS-SRV-USG:launched_at": "2026-01-01T12:00:00.250000", "OS-SRV-USG:terminated_at": None,
        "OS-EXT-STS:task_state": "rebooting", "OS-EXT-STS:vm_state": "active", "OS-EXT-STS:power_state": 1,
        "OS-EXT-SRV-ATTR:host": "host1", "OS-EXT-SRV-ATTR:launch_index": 3, "host_status": "UNKNOWN",
        "pinned_availability_zone": "nova", "trusted_image_certificates": None, "server_groups": [],
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    assert shown["OS-EXT-SRV-ATTR:instance_name"].startswith("instance-0000")
    assert shown["hostId"] == hashlib.sha224(f"{PROJECT}host1".encode()).hexdigest()
    assert shown["links"][0]["href"].endswith(f"/compute/v2.1/servers/{server_id}")


@pytest.mark.parametrize(
    ("vm_state", "task_state", "status"),
    [
        ("active", None, "ACTIVE"), ("active", "rebooting", "REBOOT"), ("active", "rebooting_hard", "HARD_REBOOT"),
        ("active", "powering-off", "ACTIVE"), ("building", "spawning", "BUILD"), ("stopped", None, "SHUTOFF"),
        ("paused", None, "PAUSED"), ("suspended", None, "SUSPENDED"), ("error", None, "ERROR"),
        ("resized", None, "VERIFY_RESIZE"), ("shelved", None, "SHELVED"), ("rescued", None, "RESCUE"),
    ],
)  # fmt: skip
def test_the_status_is_one_word_for_what_it_is_and_does(api, cells, vm_state, task_state, status):
    server_id = server(cells["cell1"], vm_state=vm_state, task_state=task_state)
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert shown["status"] == status
    assert ("progress" in shown) == (status in {"ACTIVE", "BUILD", "VERIFY_RESIZE"})


def test_a_server_is_shown_before_it_has_a_cell(api, admin, cells):
    server_id = unplaced("new", tags=",t,", metadata={"a": "b"})
    shown = api.get(f"/servers/{server_id}").json()["server"]
    assert shown.keys() == fields_at("2.96", admin=False)
    assert (shown["status"], shown["OS-EXT-STS:task_state"], shown["hostId"]) == ("BUILD", "scheduling", "")
    assert (shown["tags"], shown["metadata"], shown["addresses"]) == (["t"], {"a": "b"}, {})
    assert admin.get(f"/servers/{server_id}").json()["server"]["host_status"] == ""
    assert api.get(f"/servers/{server_id}/metadata").json() == {"metadata": {"a": "b"}}
    assert api.get(f"/servers/{server_id}/tags").json() == {"tags": ["t"]}
    assert api.get(f"/servers/{server_id}/ips").json() == {"addresses": {}}
    assert api.get(f"/servers/{server_id}/os-instance-actions").json() == {"instanceActions": []}


FAULT = {"code": 500, "message": "No valid host", "details": "stack", "created": "2026-01-01T00:00:00Z"}


def test_a_fault_is_shown_in_error_with_its_stack_for_admins_only(api, admin, cells):
    failed = server(cells["cell0"], fault=FAULT)
    shown = api.get(f"/servers/{failed}").json()["server"]
    assert shown["fault"] == {key: FAULT[key] for key in ("code", "message", "created")}
    assert "progress" not in shown
    assert admin.get(f"/servers/{failed}").json()["server"]["fault"] == FAULT
    refused = server(cells["cell1"], vm_state="error", fault={**FAULT, "code": 404})
    assert api.get(f"/servers/{refused}").json()["server"]["fault"]["details"] == "stack"
    recovered = server(cells["cell1"], fault=FAULT)
    assert "fault" not in api.get(f"/servers/{recovered}").json()["server"]


def test_another_projects_server_does_not_exist(api, stranger, admin, cells):
    server_id = server(cells["cell1"])
    answer = stranger.get(f"/servers/{server_id}")
    assert answer.status_code == 404
    assert answer.json() == {"itemNotFound": {"code": 404, "message": f"Instance {server_id} could not be found."}}
    assert admin.get(f"/servers/{server_id}").status_code == 200


@pytest.mark.parametrize("server_id", ["nobody", "11111111-1111-4111-8111-111111111111", "x" * 5000, "%00", "ü"])
def test_a_server_that_does_not_exist_is_404(api, server_id):
    assert api.get(f"/servers/{server_id}").status_code in ({404} if server_id != "%00" else {400, 404})


def test_a_deleted_server_is_gone(api, admin, cells):
    server_id = server(cells["cell1"], deleted=True, vm_state="deleted", host="")
    assert api.get(f"/servers/{server_id}").status_code == 404
    assert admin.get(f"/servers/{server_id}").status_code == 404
