"""The `openstack` command as it is installed, against a live server."""

from __future__ import annotations

import pytest

from cloud.identity.models import User

pytestmark = [
    pytest.mark.live,
    pytest.mark.django_db(databases=["default"], transaction=True),
    pytest.mark.urls("tests.identity.urls"),
]


def test_tokens_and_catalog(openstack, people):
    token = openstack("token issue")
    assert token["project_id"] == people.projects["admin"].id
    assert {entry["Name"] for entry in openstack("catalog list")} == {"keystone", "nova", "glance"}
    assert {role["Name"] for role in openstack("role list")} >= {"admin", "member", "reader"}
    assert len(openstack("endpoint list")) == 9
    assert openstack("domain list")[0]["ID"] == "default"
    openstack("token revoke", token["id"], parse=False)


def test_projects(openstack):
    made = openstack("project create lab --description x")
    assert {project["Name"] for project in openstack("project list")} == {"admin", "demo", "other", "lab"}
    openstack("project set lab --name lab2 --disable", parse=False)
    assert openstack("project show lab2")["id"] == made["id"]
    openstack("project delete lab2", parse=False)
    assert "found" in openstack("project show lab2", fails=True)


def test_users_and_roles(openstack):
    made = openstack("user create eve --project demo --password first")
    assert made["default_project_id"]
    assert "eve" in {user["Name"] for user in openstack("user list")}
    openstack("user set eve --email eve@example.org --password second", parse=False)
    assert openstack("user show eve")["email"] == "eve@example.org"
    assert User.objects.get(name="eve").check_password("second")
    openstack("role add --user eve --project demo member", parse=False)
    assigned = openstack("role assignment list --names --user eve --project demo")
    assert [(one["Role"], one["User"]) for one in assigned] == [("member", "eve@Default")]
    openstack("role remove --user eve --project demo member", parse=False)
    assert openstack("role assignment list --names --user eve") == []
    openstack("user delete eve", parse=False)
    assert "No User found" in openstack("user show eve", fails=True)


def test_members_see_what_is_theirs(openstack):
    assert openstack("token issue", user="demo")["project_id"]
    assert "not authorized" in openstack("user list", user="demo", fails=True)
