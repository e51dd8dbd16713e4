"""Server groups: what is shown of them, by microversion, and who may have how many."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cells import circuit_breaker
from compute.models import Quota, ServerGroup, ServerGroupMember
from tests.conftest import PROJECT
from tests.flow.stories import at_once

NEW = {"name": "g", "policy": "anti-affinity"}


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


def create(client, version="2.96", **group):
    return client.send("post", "/os-server-groups", {"server_group": group or NEW}, version=version)


def made(client, **group):
    answer = create(client, **group)
    assert answer.status_code == 200, answer.content
    return answer.json()["server_group"]["id"]


def boot(client, cloud, group, name="a", count=1):
    body = cloud.body(name, min_count=count, max_count=count) | {"os:scheduler_hints": {"group": group}}
    return client.send("post", "/servers", body)


def shown(client, group, version="2.96"):
    return client.get(f"/os-server-groups/{group}", version=version).json()["server_group"]


@pytest.mark.parametrize(
    ("version", "group", "fields"),
    [
        ("2.1", {"name": "g", "policies": ["affinity"]}, {"policies": ["affinity"], "metadata": {}}),
        ("2.13", {"name": "g", "policies": ["affinity"]},
         {"policies": ["affinity"], "metadata": {}, "project_id": PROJECT, "user_id": "user-of-aaaa"}),
        ("2.15", {"name": "g", "policies": ["soft-affinity"]},
         {"policies": ["soft-affinity"], "metadata": {}, "project_id": PROJECT, "user_id": "user-of-aaaa"}),
        ("2.64", {"name": "g", "policy": "soft-anti-affinity"},
         {"policy": "soft-anti-affinity", "rules": {}, "project_id": PROJECT, "user_id": "user-of-aaaa"}),
        ("2.96", {"name": "g", "policy": "anti-affinity", "rules": {"max_server_per_host": "3"}},
         {"policy": "anti-affinity", "rules": {"max_server_per_host": 3}, "project_id": PROJECT,
          "user_id": "user-of-aaaa"}),
    ],
)  # fmt: skip
def test_a_group_is_shown_as_its_microversion_knows_it(version, group, fields, api):
    answer = create(api, version, **group).json()["server_group"]
    assert answer == {"id": answer["id"], "name": "g", "members": [], **fields}
    assert shown(api, answer["id"], version) == answer
    assert api.get("/os-server-groups", version=version).json() == {"server_groups": [answer]}


@pytest.mark.parametrize(
    ("version", "group"),
    [
        ("2.1", {"name": "g", "policies": ["soft-affinity"]}),
        ("2.63", {"name": "g", "policies": ["affinity", "anti-affinity"]}),
        ("2.63", {"name": "g", "policies": []}),
        ("2.63", {"name": "g", "policy": "affinity"}),
        ("2.64", {"name": "g", "policies": ["affinity"]}),
        ("2.64", {"name": "g", "policy": "near"}),
        ("2.64", {"name": "", "policy": "affinity"}),
        ("2.64", {"policy": "affinity"}),
        ("2.64", {"name": "g", "policy": "affinity", "rules": {"max_server_per_host": 2}}),
        ("2.64", {"name": "g", "policy": "anti-affinity", "rules": {"max_server_per_host": 0}}),
        ("2.64", {"name": "g", "policy": "anti-affinity", "rules": {"most": 2}}),
    ],
)
def test_what_is_no_group_is_refused(version, group, api):
    assert create(api, version, **group).status_code == 400
    assert not ServerGroup.objects.exists()


def test_rules_are_of_anti_affinity_alone(api):
    refused = create(api, name="g", policy="affinity", rules={"max_server_per_host": 2})
    assert message(refused, 400) == "Only anti-affinity policy supports rules."


def test_a_group_of_another_project_does_not_exist(api, stranger, admin, reader):
    group = made(api)
    path = f"/os-server-groups/{group}"
    assert message(stranger.get(path), 404) == f"Instance group {group} could not be found."
    assert stranger.delete(path).status_code == 404
    assert stranger.get("/os-server-groups").json() == {"server_groups": []}
    assert [one["id"] for one in reader.get("/os-server-groups").json()["server_groups"]] == [group]
    assert create(reader).status_code == 403
    assert reader.delete(path).status_code == 403
    assert api.get("/os-server-groups?all_projects=1").status_code == 403
    assert [one["id"] for one in admin.get("/os-server-groups?all_projects=1").json()["server_groups"]] == [group]
    assert admin.get("/os-server-groups").json() == {"server_groups": []}
    assert admin.get(path).status_code == 200
    assert api.delete(path).status_code == 204
    assert api.delete(path).status_code == 404


def test_pages(api):
    groups = [made(api, name=f"g{n}", policy="affinity") for n in range(5)]

    def ids(query):
        return [one["id"] for one in api.get(f"/os-server-groups?{query}").json()["server_groups"]]

    assert ids("") == groups
    assert ids("limit=2") == groups[:2]
    assert ids("limit=2&offset=3") == groups[3:]
    assert ids("offset=9") == []
    for query in ("limit=-1", "offset=-1", "offset=x", "color=red"):
        assert api.get(f"/os-server-groups?{query}").status_code == 400, query


# -- members


def test_servers_are_members_from_their_request_to_their_delete(api, cloud):
    group = made(api)
    first = boot(api, cloud, group).json()["server"]["id"]
    assert shown(api, group)["members"] == [first]
    assert api.get(f"/servers/{first}").json()["server"]["server_groups"] == [group]
    assert "server_groups" not in api.get(f"/servers/{first}", version="2.70").json()["server"]
    cloud.work()
    assert shown(api, group)["members"] == [first]
    assert api.get(f"/servers/{first}").json()["server"]["server_groups"] == [group]
    assert "server_groups" not in api.get("/servers/detail").json()["servers"][0]
    assert api.get(f"/servers/{cloud.boot(api, 'alone')}").json()["server"]["server_groups"] == []

    api.delete(f"/servers/{first}")
    assert shown(api, group)["members"] == []
    cloud.work()
    assert api.get("/limits").json()["limits"]["absolute"]["totalServerGroupsUsed"] == 1


def test_members_in_a_cell_that_is_down_are_shown(api, cloud):
    group = made(api)
    server_id = boot(api, cloud, group).json()["server"]["id"]
    cloud.work()
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "ordered")
    assert shown(api, group)["members"] == [server_id]
    assert api.get(f"/servers/{server_id}").json()["server"]["server_groups"] == [group]
    circuit_breaker.record_recovery(cloud.cell_of(server_id).id)


def test_the_servers_of_a_deleted_group_stay(api, cloud):
    group = made(api)
    server_id = boot(api, cloud, group).json()["server"]["id"]
    cloud.work()
    assert api.delete(f"/os-server-groups/{group}").status_code == 204
    assert not ServerGroupMember.objects.exists()
    assert api.get(f"/servers/{server_id}").json()["server"]["server_groups"] == []


def test_a_hint_has_to_name_a_group_of_the_project(api, stranger, cloud):
    unknown, foreign = str(uuid4()), made(stranger)
    for group in (unknown, foreign):
        assert message(boot(api, cloud, group), 400) == f"Instance group {group} could not be found."
    assert boot(api, cloud, "mine").status_code == 400
    for hints in ({"group": None}, {"same_host": "x"}, {"different_host": [1]}, {"different_host": {}}):
        assert api.send("post", "/servers", cloud.body() | {"os:scheduler_hints": hints}).status_code == 400, hints
    assert not ServerGroupMember.objects.exists()


# -- quotas


def test_a_project_has_so_many_groups_and_no_more_however_many_ask_at_once(api, cells):
    Quota.objects.create(project_id=PROJECT, resource="server_groups", limit=3)
    answers = at_once(6, lambda _: create(api).status_code)
    assert sorted(answers) == [200] * 3 + [403] * 3
    assert message(create(api), 403) == "Quota exceeded, too many server groups."
    detail = api.get(f"/os-quota-sets/{PROJECT}").json()["quota_set"]
    assert detail["server_groups"] == 3


def test_a_group_has_so_many_members_and_no_more_however_many_ask_at_once(api, cloud):
    Quota.objects.create(project_id=PROJECT, resource="server_group_members", limit=3)
    group = made(api, name="g", policy="soft-affinity")
    assert message(boot(api, cloud, group, count=4), 403) == "Quota exceeded, too many servers in group"
    assert not ServerGroupMember.objects.exists()
    answers = at_once(6, lambda n: boot(api, cloud, group, f"s{n}").status_code)
    assert sorted(answers) == [202] * 3 + [403] * 3
    assert len(shown(api, group)["members"]) == 3
    cloud.work()
    api.delete(f"/servers/{shown(api, group)['members'][0]}")  # makes room for another
    assert boot(api, cloud, group).status_code == 202


def test_what_is_used_of_the_quota_is_shown(admin, api):
    made(api)
    detail = admin.get(f"/os-quota-sets/{PROJECT}/detail").json()["quota_set"]
    assert detail["server_groups"] == {"limit": 10, "in_use": 1, "reserved": 0}


# -- races


def test_boots_into_a_group_that_is_being_deleted_get_in_or_are_refused(api, cloud):
    for _ in range(4):
        group = made(api, name="g", policy="soft-affinity")

        def work(number, group=group):
            if number == 2:
                return api.delete(f"/os-server-groups/{group}").status_code
            return boot(api, cloud, group, f"s{number}").status_code

        answers = at_once(5, work)
        assert set(answers) <= {202, 204, 400}, answers
        assert not ServerGroupMember.objects.exists()
        cloud.work()
        for server in api.get("/servers").json()["servers"]:
            api.delete(f"/servers/{server['id']}")
        cloud.work()
