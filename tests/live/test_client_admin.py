"""The stock client in an administrator's hands, and in those of a user the administrator just made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.cloud import ClientFailed, Cloud

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
PASSWORD = "correct-horse"
ERIN = ("--os-username", "erin", "--os-password", PASSWORD, "--os-project-name", "orchard")


@pytest.fixture(scope="module")
def demos_server(fake_cloud: Cloud) -> Iterator[str]:
    """A server of another project than erin's."""
    words = ("--image", "micro", "--flavor", "m1.nano", "--nic", "none", "--wait", "demos")
    uuid = fake_cloud.openstack("server", "create", *words)["id"]
    yield uuid
    fake_cloud.do("server", "delete", "--wait", uuid)


@pytest.fixture(scope="module")
def erin(fake_cloud: Cloud) -> tuple[str, ...]:
    """A project, a user with a password and a role in it: four commands."""
    project = fake_cloud.openstack("project", "create", "--description", "apples", "orchard", admin=True)
    words = ("user", "create", "--project", "orchard", "--password", PASSWORD, "erin")
    user = fake_cloud.openstack(*words, admin=True)
    assert user["default_project_id"] == project["id"]
    fake_cloud.do("role", "add", "--project", "orchard", "--user", "erin", "member", admin=True)
    return ERIN


def test_services_of_every_cell_are_up(fake_cloud):
    rows = fake_cloud.openstack("compute", "service", "list", admin=True)
    assert {(row["Binary"], row["Host"]) for row in rows} == {
        ("nova-scheduler", "scheduler"), ("nova-conductor", "conductor-cell1"),
        ("nova-conductor", "conductor-cell2"), ("nova-compute", "host1"), ("nova-compute", "host2"),
    }  # fmt: skip
    assert {(row["Status"], row["State"]) for row in rows} == {("enabled", "up")}


def test_a_disabled_host_gets_no_servers(fake_cloud):
    reason = ("--disable", "--disable-reason", "new memory")
    fake_cloud.do("compute", "service", "set", *reason, "host1", "nova-compute", admin=True)
    (row,) = fake_cloud.openstack("compute", "service", "list", "--host", "host1", "--long", admin=True)
    assert (row["Status"], row["Disabled Reason"]) == ("disabled", "new memory")
    fake_cloud.do("compute", "service", "set", "--enable", "host1", "nova-compute", admin=True)
    (row,) = fake_cloud.openstack("compute", "service", "list", "--host", "host1", admin=True)
    assert row["Status"] == "enabled"


def test_hypervisors(fake_cloud):
    rows = fake_cloud.openstack("hypervisor", "list", admin=True)
    assert {row["Hypervisor Hostname"]: row["State"] for row in rows} == {"host1": "up", "host2": "up"}
    shown = fake_cloud.openstack("hypervisor", "show", "host1", admin=True)
    assert (shown["service_host"], shown["status"]) == ("host1", "enabled")


def test_the_catalog_and_a_token(fake_cloud):
    catalog = {row["Type"]: row["Endpoints"] for row in fake_cloud.openstack("catalog", "list")}
    assert set(catalog) == {"identity", "compute", "image"}
    public = {end["interface"]: end["url"] for end in catalog["compute"]}["public"]
    assert public == f"{fake_cloud.url}/compute/v2.1"
    token = fake_cloud.openstack("token", "issue")
    demo = fake_cloud.openstack("project", "show", "demo", admin=True)
    assert token["project_id"] == demo["id"]


def test_a_new_user_has_a_cloud_of_her_own(fake_cloud, erin, demos_server):
    assert fake_cloud.openstack(*erin, "server", "list") in (None, [])
    with pytest.raises(ClientFailed, match=f"No Server found for {demos_server}"):
        fake_cloud.do(*erin, "server", "show", demos_server)
    (row,) = fake_cloud.openstack("role", "assignment", "list", "--names", "--user", "erin", admin=True)
    assert (row["Role"], row["Project"]) == ("member", "orchard@Default")


def test_a_quota_is_set_and_counted(fake_cloud, erin, demos_server):
    fake_cloud.do("quota", "set", "--instances", "1", "--cores", "7", "orchard", admin=True)
    rows = fake_cloud.openstack("quota", "show", "orchard", admin=True)
    limits = {row["Resource"]: row["Limit"] for row in rows}
    assert (limits["instances"], limits["cores"], limits["ram"]) == (1, 7, 51200)
    used = {row["Name"]: row["Value"] for row in fake_cloud.openstack("limits", "show", "--absolute")}
    assert (used["total_instances_used"], used["total_cores_used"], used["total_ram_used"]) == (1, 1, 64)
    hers = {row["Name"]: row["Value"] for row in fake_cloud.openstack(*erin, "limits", "show", "--absolute")}
    assert (hers["max_total_instances"], hers["total_instances_used"]) == (1, 0)


def test_zones(fake_cloud):
    assert [row["Zone Name"] for row in fake_cloud.openstack("availability", "zone", "list")] == ["nova"]


def test_key_pairs(fake_cloud):
    assert "BEGIN OPENSSH PRIVATE KEY" in fake_cloud.do("keypair", "create", "key")
    (row,) = fake_cloud.openstack("keypair", "list")
    assert (row["Name"], row["Type"]) == ("key", "ssh")
    fake_cloud.do("keypair", "delete", "key")
    assert fake_cloud.openstack("keypair", "list") in (None, [])


def test_flavors(fake_cloud):
    words = ("--ram", "32", "--disk", "1", "--vcpus", "1", "--property", "hw:one=1", "m1.pico")
    made = fake_cloud.openstack("flavor", "create", *words, admin=True)
    fake_cloud.do("flavor", "set", "--property", "hw:two=2", "m1.pico", admin=True)
    fake_cloud.do("flavor", "unset", "--property", "hw:one", "m1.pico", admin=True)
    shown = fake_cloud.openstack("flavor", "show", "m1.pico")
    assert (shown["id"], shown["ram"]) == (made["id"], 32)
    assert fake_cloud.openstack("flavor", "show", "m1.pico", admin=True)["properties"] == {"hw:two": "2"}
    fake_cloud.do("flavor", "delete", "m1.pico", admin=True)
    with pytest.raises(ClientFailed, match=r"No Flavor found for m1\.pico"):
        fake_cloud.openstack("flavor", "show", "m1.pico")


def test_an_image_goes_up_and_comes_down_the_same(fake_cloud, tmp_path):
    (tmp_path / "disk.img").write_bytes(b"stillwater" * 100_000)
    words = ("--disk-format", "raw", "--property", "os_shutdown_timeout=5")
    made = fake_cloud.openstack("image", "create", *words, "--file", str(tmp_path / "disk.img"), "mine")
    assert (made["status"], made["visibility"]) == ("active", "shared")
    fake_cloud.do("image", "save", "--file", str(tmp_path / "back.img"), "mine")
    assert (tmp_path / "back.img").read_bytes() == (tmp_path / "disk.img").read_bytes()
    fake_cloud.do("image", "set", "--property", "colour=red", "mine")
    shown = fake_cloud.openstack("image", "show", "mine")["properties"]
    assert (shown["colour"], shown["os_shutdown_timeout"]) == ("red", 5)
    fake_cloud.do("image", "delete", "mine")
