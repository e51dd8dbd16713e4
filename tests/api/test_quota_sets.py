"""Limits of projects, and the `limits` resource that sums them up."""

import pytest
from django.conf import settings
from django.utils import timezone

from cells.models import InstanceMapping, RequestSpec
from tests.conftest import OTHER_PROJECT, PROJECT

BASE = {"instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members"}
INJECTED = {"injected_files", "injected_file_content_bytes", "injected_file_path_bytes"}
NETWORK = {"fixed_ips", "floating_ips", "security_groups", "security_group_rules"}
MINE = f"/os-quota-sets/{PROJECT}"


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


def put(admin, version="2.96", path=MINE, **limits):
    return admin.send("put", path, {"quota_set": limits}, version=version)


@pytest.fixture
def two_servers(cells):
    """Two servers of PROJECT, 2 cores and 512 MiB each; a third is being deleted."""
    for server_id, queued in (("s1", False), ("s2", False), ("s3", True)):
        InstanceMapping.objects.create(
            server_id=server_id, cell=cells["cell1"], project_id=PROJECT, user_id="u",
            queued_for_delete=queued, created_at=timezone.now(),
        )  # fmt: skip
        RequestSpec.objects.create(
            server_id=server_id, project_id=PROJECT, user_id="u", vcpus=2, memory_mb=512, disk_gb=1, flavor={}
        )


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("2.35", BASE | INJECTED | NETWORK),
        ("2.36", BASE | INJECTED),
        ("2.56", BASE | INJECTED),
        ("2.57", BASE),
    ],
)
def test_fields_follow_the_microversion(api, admin, version, fields):
    for path in (MINE, f"{MINE}/defaults"):
        assert set(api.get(path, version=version).json()["quota_set"]) == fields | {"id"}
    assert set(admin.get(f"{MINE}/detail", version=version).json()["quota_set"]) == fields | {"id"}


def test_limits_are_set_shown_and_forgotten(admin, api):
    changed = put(admin, instances=3, cores="-1")
    assert changed.status_code == 200
    assert "id" not in changed.json()["quota_set"]

    shown = api.get(f"{MINE}?user_id=somebody").json()["quota_set"]
    assert (shown["id"], shown["instances"], shown["cores"]) == (PROJECT, 3, -1)
    default = settings.QUOTA_DEFAULTS["instances"]
    assert api.get(f"{MINE}/defaults").json()["quota_set"]["instances"] == default

    assert admin.delete(f"{MINE}?user_id=somebody").status_code == 202
    assert api.get(MINE).json()["quota_set"]["instances"] == 3
    assert admin.delete(MINE).status_code == 202
    assert api.get(MINE).json()["quota_set"]["instances"] == default


def test_detail_says_what_is_used(admin, two_servers):
    detail = admin.get(f"{MINE}/detail").json()["quota_set"]

    assert detail["instances"] == {"limit": settings.QUOTA_DEFAULTS["instances"], "in_use": 2, "reserved": 0}
    assert detail["cores"]["in_use"] == 4
    assert detail["ram"]["in_use"] == 1024


def test_a_limit_below_usage_needs_force(admin, two_servers):
    refused = put(admin, cores=3)
    assert message(refused, 400) == (
        "Quota limit 3 for cores must be greater than or equal to already used and reserved 4."
    )
    assert put(admin, cores=-1).status_code == 200
    assert put(admin, cores=4).status_code == 200
    assert put(admin, cores=3, force=True).json()["quota_set"]["cores"] == 3


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ({"cores": -2}, "-2 is less than the minimum of -1"),
        ({"cores": "-2"}, "-2 is less than the minimum of -1"),
        ({"cores": "many"}, "Invalid input for field/attribute cores. Value: many."),
        ({"cores": "99999999999"}, "is greater than the maximum"),
        ({"floating_ips": 1}, "Additional properties are not allowed ('floating_ips' was unexpected)"),
    ],
)
def test_a_wrong_limit_is_named(admin, limits, part):
    assert part in message(put(admin, **limits), 400)


def test_an_old_limit_is_shown_as_it_was_set(admin):
    put(admin, version="2.35", floating_ips=7, injected_files=1)

    shown = admin.get(MINE, version="2.35").json()["quota_set"]

    assert (shown["floating_ips"], shown["injected_files"], shown["fixed_ips"]) == (7, 1, -1)


def test_who_may(api, reader, stranger, admin):
    assert reader.get(MINE).status_code == 200
    assert stranger.get(MINE).status_code == 403
    assert api.get(f"{MINE}/detail").status_code == 403
    assert put(api, cores=1).status_code == 403
    assert api.delete(MINE).status_code == 403
    assert put(admin, path=f"{MINE}?user_id=u", cores=1).status_code == 400


def test_limits_of_the_callers_project(api, two_servers):
    found = api.get("/limits?reserved=1").json()["limits"]

    assert found["rate"] == []
    assert found["absolute"] == {
        "maxTotalInstances": 10, "maxTotalCores": 20, "maxTotalRAMSize": 51200, "maxTotalKeypairs": 100,
        "maxServerMeta": 128, "maxServerGroups": 10, "maxServerGroupMembers": 10,
        "totalInstancesUsed": 2, "totalCoresUsed": 4, "totalRAMUsed": 1024, "totalServerGroupsUsed": 0,
    }  # fmt: skip


def test_limits_of_old_versions_have_more(api):
    old = set(api.get("/limits", version="2.1").json()["limits"]["absolute"])
    now = set(api.get("/limits").json()["limits"]["absolute"])

    assert old - now == {
        "maxImageMeta", "maxPersonality", "maxPersonalitySize", "maxTotalFloatingIps", "maxSecurityGroups",
        "maxSecurityGroupRules", "totalFloatingIpsUsed", "totalSecurityGroupsUsed",
    }  # fmt: skip


def test_limits_of_another_project_are_for_admins(api, admin, two_servers):
    assert api.get(f"/limits?tenant_id={OTHER_PROJECT}").status_code == 403
    found = admin.get(f"/limits?tenant_id={PROJECT}").json()["limits"]["absolute"]
    assert found["totalInstancesUsed"] == 2
    assert api.get("/limits?colour=red").status_code == 400


def test_a_cell_that_is_down_changes_nothing(api, two_servers, down_cell):
    InstanceMapping.objects.filter(server_id="s1").update(cell=down_cell)
    assert api.get("/limits").json()["limits"]["absolute"]["totalInstancesUsed"] == 2
