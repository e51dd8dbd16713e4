"""Projects, users, roles and what else Keystone shows."""

from __future__ import annotations

import pytest

from cloud.identity import roles
from cloud.identity.models import Project, RoleAssignment, User
from tests.identity.fixtures import PASSWORD

pytestmark = [pytest.mark.django_db(databases=["default"]), pytest.mark.urls("tests.identity.urls")]
V3 = "/identity/v3"


def test_discovery_works_with_and_without_slash(anonymous, settings):
    for url in ("/identity", "/identity/"):
        answer = anonymous.get(url)
        assert answer.status_code == 300
        assert answer.json()["versions"]["values"][0]["links"][0]["href"] == f"{settings.PUBLIC_URL}{V3}/"
    for url in (V3, f"{V3}/"):
        assert anonymous.get(url).json()["version"]["id"].startswith("v3")


def test_unknown_paths_are_404_in_keystones_shape(anonymous):
    for url in ("/identity/v2.0", f"{V3}/nonsense", f"{V3}/auth/OS-FEDERATION/websso"):
        answer = anonymous.get(url)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == 404


def test_answers_are_json_whatever_is_accepted(anonymous):
    assert anonymous.get(V3, headers={"Accept": "text/html"}).status_code == 200


def test_a_projects_life(admin):
    made = admin.post(f"{V3}/projects", {"project": {"name": "lab", "description": "d"}}, format="json")
    assert made.status_code == 201
    project = made.json()["project"]
    assert (project["domain_id"], project["enabled"], project["is_domain"]) == ("default", True, False)
    again = admin.post(f"{V3}/projects", {"project": {"name": "lab"}}, format="json")
    assert again.status_code == 409
    assert [one["id"] for one in admin.get(f"{V3}/projects?name=lab").json()["projects"]] == [project["id"]]
    url = f"{V3}/projects/{project['id']}"
    assert admin.get(url).json()["project"]["description"] == "d"
    changed = admin.patch(url, {"project": {"name": "lab2", "enabled": False}}, format="json")
    assert changed.json()["project"]["name"] == "lab2"
    assert admin.get(f"{V3}/projects?enabled=false").json()["projects"][0]["name"] == "lab2"
    assert admin.patch(url, {"project": {"name": "demo"}}, format="json").status_code == 409
    assert admin.delete(url).status_code == 204
    missing = admin.get(url)
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == f"Could not find project: {project['id']}."


def test_a_users_life(admin, anonymous):
    fields = {"name": "eve", "password": "secret word", "email": "eve@example.org"}
    made = admin.post(f"{V3}/users", {"user": fields}, format="json")
    assert made.status_code == 201
    assert "secret word" not in made.content.decode()
    user = made.json()["user"]
    assert user["email"] == "eve@example.org"
    assert admin.post(f"{V3}/users", {"user": {"name": "eve"}}, format="json").status_code == 409
    url = f"{V3}/users/{user['id']}"
    assert admin.patch(url, {"user": {"password": "other word"}}, format="json").status_code == 200
    assert User.objects.get(name="eve").check_password("other word")
    assert [one["name"] for one in admin.get(f"{V3}/users?name=eve").json()["users"]] == ["eve"]
    assert admin.delete(url).status_code == 204
    assert admin.get(url).status_code == 404


def test_a_user_without_password_cannot_log_in(admin, anonymous):
    admin.post(f"{V3}/users", {"user": {"name": "ghost"}}, format="json")
    user = {"name": "ghost", "password": "", "domain": {"id": "default"}}
    body = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}}
    assert anonymous.post(f"{V3}/auth/tokens", body, format="json").status_code == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("projects", {}), ("projects", []), ("projects", {"project": []}), ("projects", {"project": {}}),
        ("projects", {"project": {"name": 5}}), ("projects", {"project": {"name": ""}}),
        ("projects", {"project": {"name": " "}}), ("projects", {"project": {"name": "x" * 65}}),
        ("projects", {"project": {"name": "x", "enabled": "yes"}}),
        ("projects", {"project": {"name": "a\0"}}),
        ("projects", {"project": {"name": "x", "is_domain": True}}),
        ("projects", {"project": {"name": "x", "description": {}}}),
        ("users", {"user": {"name": None}}), ("users", {"user": {"name": "x", "password": 12}}),
        ("users", {"user": {"name": "x", "email": []}}), ("users", {"user": {"name": "x", "enabled": 1}}),
        ("users", {"user": {"name": "x", "default_project_id": 1}}),
    ],
)  # fmt: skip
def test_wrong_types_are_400(admin, path, body):
    assert admin.post(f"{V3}/{path}", body, format="json").status_code == 400


def test_another_domain_is_404(admin):
    body = {"project": {"name": "x", "domain_id": "elsewhere"}}
    assert admin.post(f"{V3}/projects", body, format="json").status_code == 404


def test_nul_in_path_or_query_is_400(admin):
    assert admin.get(f"{V3}/users?name=a%00b").status_code == 400
    assert admin.get(f"{V3}/users/a%00b").status_code == 400


def test_everything_but_oneself_is_for_admins(people, demo):
    me, project = people.users["demo"].id, people.projects["demo"].id
    for path in (
        "users",
        "projects",
        "roles",
        "role_assignments",
        "services",
        "endpoints",
        "domains",
        "regions",
    ):
        answer = demo.get(f"{V3}/{path}")
        assert answer.status_code == 403, path
        assert f"identity:list_{path}." in answer.json()["error"]["message"]
    assert demo.get(f"{V3}/users/{me}").status_code == 200
    assert demo.get(f"{V3}/users/{me}/projects").json()["projects"][0]["id"] == project
    assert demo.get(f"{V3}/projects/{project}").status_code == 200
    assert demo.get(f"{V3}/auth/catalog").status_code == 200
    assert demo.get(f"{V3}/users/{people.users['other'].id}").status_code == 403
    assert demo.get(f"{V3}/projects/{people.projects['other'].id}").status_code == 403
    assert demo.patch(f"{V3}/users/{me}", {"user": {"name": "root"}}, format="json").status_code == 403
    assert demo.delete(f"{V3}/projects/{project}").status_code == 403
    grant = f"{V3}/projects/{project}/users/{me}/roles/{roles.ROLES['admin'].id}"
    assert demo.put(grant).status_code == 403
    assert not RoleAssignment.objects.filter(user=me, role="admin").exists()


def test_without_token_everything_is_401(anonymous, people):
    for path in ("users", "projects", "auth/catalog", "auth/projects", "role_assignments"):
        answer = anonymous.get(f"{V3}/{path}")
        assert answer.status_code == 401
        assert answer.json()["error"]["title"] == "Unauthorized"


def test_giving_and_taking_a_role(people, admin):
    user, project = people.users["other"], people.projects["demo"]
    role = roles.ROLES["manager"]
    url = f"{V3}/projects/{project.id}/users/{user.id}/roles/{role.id}"
    assert admin.head(url).status_code == 404
    assert admin.put(url).status_code == 204
    assert admin.put(url).status_code == 204
    assert admin.head(url).status_code == 204
    assert RoleAssignment.objects.filter(user=user, project=project).count() == 1
    listed = admin.get(f"{V3}/projects/{project.id}/users/{user.id}/roles").json()["roles"]
    assert [one["name"] for one in listed] == ["manager"]
    assert admin.delete(url).status_code == 204
    assert admin.delete(url).status_code == 404
    assert admin.put(url.replace(role.id, "member")).status_code == 404
    assert admin.put(url.replace(user.id, "nobody")).status_code == 404


def test_role_assignments_with_names_and_implied_roles(people, admin):
    user = people.users["demo"].id
    plain = admin.get(f"{V3}/role_assignments?user.id={user}").json()["role_assignments"]
    assert plain[0]["role"] == {"id": roles.ROLES["member"].id}
    named = admin.get(f"{V3}/role_assignments?user.id={user}&include_names=True").json()["role_assignments"]
    assert named[0]["user"]["name"] == "demo"
    assert named[0]["scope"]["project"]["name"] == "demo"
    query = f"user.id={user}&effective&include_names=1"
    every = admin.get(f"{V3}/role_assignments?{query}").json()["role_assignments"]
    assert {one["role"]["name"] for one in every} == {"member", "reader"}
    role = roles.ROLES["reader"].id
    assert len(admin.get(f"{V3}/role_assignments?role.id={role}").json()["role_assignments"]) == 1
    assert admin.get(f"{V3}/role_assignments?group.id=x").json()["role_assignments"] == []


def test_listing_costs_the_same_for_many(people, admin, django_assert_num_queries):
    for number in range(20):
        user = User.objects.create_user(f"user{number}")
        RoleAssignment.objects.create(user=user, project=people.projects["demo"], role="member")
    with django_assert_num_queries(2):
        found = admin.get(f"{V3}/role_assignments?include_names=1").json()["role_assignments"]
    assert len(found) == 25


def test_pages_are_followed_to_the_end(admin):
    for number in range(5):
        Project.objects.create(name=f"p{number}")
    url, seen = f"{V3}/projects?limit=3", []
    while url:
        answer = admin.get(url)
        seen += [project["id"] for project in answer.json()["projects"]]
        assert ("Link" in answer) == bool(answer.json()["links"]["next"])
        url = answer.json()["links"]["next"]
    assert len(seen) == len(set(seen)) == 8
    assert admin.get(f"{V3}/projects?limit=x").status_code == 400


def test_roles_and_places_are_fixed(admin):
    listed = admin.get(f"{V3}/roles").json()["roles"]
    assert {role["name"] for role in listed} == set(roles.NAMES)
    one = admin.get(f"{V3}/roles?name=member").json()["roles"]
    assert admin.get(f"{V3}/roles/{one[0]['id']}").json()["role"]["name"] == "member"
    assert admin.get(f"{V3}/roles/member").status_code == 404
    assert admin.get(f"{V3}/domains?name=Default").json()["domains"][0]["id"] == "default"
    assert admin.get(f"{V3}/domains?name=x").json()["domains"] == []
    service = admin.get(f"{V3}/services").json()["services"][0]
    assert admin.get(f"{V3}/services/{service['id']}").json()["service"] == service
    endpoints = admin.get(f"{V3}/endpoints?service_id={service['id']}&interface=public").json()["endpoints"]
    assert len(endpoints) == 1
    assert admin.get(f"{V3}/regions/RegionOne").status_code == 200
    assert admin.post(f"{V3}/roles", {"role": {"name": "x"}}, format="json").status_code == 405


def test_deleting_a_user_takes_its_tokens(people, admin, demo):
    assert admin.delete(f"{V3}/users/{people.users['demo'].id}").status_code == 204
    assert demo.get(f"{V3}/auth/projects").status_code == 401


def test_superusers_log_into_the_admin_pages(people, client):
    client.raise_request_exception = True
    boss = User.objects.create_superuser("boss", PASSWORD)
    assert client.login(name="boss", password=PASSWORD)
    assert client.get("/admin/identity/user/").status_code == 200
    assert client.get("/admin/identity/project/").status_code == 200
    assert client.get("/admin/identity/roleassignment/").status_code == 200
    assert client.get(f"/admin/identity/user/{boss.id}/change/").status_code == 200
    assert client.get(f"/admin/identity/user/{boss.id}/password/").status_code == 200
    project = people.projects["demo"]
    assert client.get(f"/admin/identity/project/{project.id}/change/").status_code == 200
    assert client.post(f"/admin/identity/project/{project.id}/delete/", {"post": "yes"}).status_code == 403


def test_a_user_made_on_the_admin_page_can_log_in(people, client):
    User.objects.create_superuser("boss", PASSWORD)
    client.login(name="boss", password=PASSWORD)
    fields = {"name": "mona", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    assert client.get("/admin/identity/user/add/").status_code == 200
    assert client.post("/admin/identity/user/add/", fields).status_code == 302
    assert User.objects.get(name="mona").check_password(PASSWORD)


def test_members_do_not_log_into_the_admin_pages(people, client):
    assert client.login(name="demo", password=PASSWORD)
    assert client.get("/admin/identity/user/").status_code == 302
