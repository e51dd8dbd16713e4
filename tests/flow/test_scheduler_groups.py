"""Servers of a group are together, or apart: at boots, at moves, and when a host fails."""

from __future__ import annotations

import pytest

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import BuildRequest
from compute.builds import build
from compute.models import ComputeNode, ServerGroup, ServerGroupMember
from compute.periodic import stale_group_members
from tests.flow.stories import Killed, act, settled, states
from tests.flow.test_evacuate import evacuate, gone_host, work
from tests.flow.two_hosts import LIVE, killed, until

NONE = "No valid host was found. No host passed the filter for: {}."


@pytest.fixture
def group(admin):
    """Make a group; its id."""

    def made(policy, **rules):
        order = {"name": policy, "policy": policy, "rules": rules} if rules else {"name": policy, "policy": policy}
        return admin.send("post", "/os-server-groups", {"server_group": order}).json()["server_group"]["id"]

    return made


@pytest.fixture
def boot(admin, cloud):
    """Boot a server in a group; its id. host1, host3 and host4 are in cell1, host2 is in cell2."""
    cloud.add_host("host3", "cell1")
    cloud.add_host("host4", "cell1")

    def booted(group, name="a", **server):
        hints = {"os:scheduler_hints": {"group": group}}
        answer = admin.send("post", "/servers", cloud.body(name, **server) | hints)
        assert answer.status_code == 202, answer.content
        cloud.work()
        return answer.json()["server"]["id"]

    return booted


def host(cloud, server_id):
    return cloud.row(server_id).host


def hosts(cloud, server_ids):
    return [host(cloud, one) for one in server_ids]


def fault(admin, server_id):
    return admin.get(f"/servers/{server_id}").json()["server"]["fault"]["message"]


def move(admin, cloud, server_id, to=None):
    """Live; where it is then."""
    body = {"os-migrateLive": {"host": to, "block_migration": "auto"}}
    assert act(admin, server_id, body).status_code == 202
    cloud.work()
    assert states(cloud, server_id) == ("active", None)
    return host(cloud, server_id)


# -- anti-affinity


def test_anti_affine_servers_are_on_hosts_of_their_own_while_there_are_some(cloud, group, boot, admin):
    apart = group("anti-affinity")
    servers = [boot(apart, name) for name in "abcd"]
    assert sorted(hosts(cloud, servers)) == ["host1", "host2", "host3", "host4"]
    fifth = boot(apart, "e")
    assert fault(admin, fifth) == NONE.format("server group anti-affinity")
    admin.delete(f"/servers/{servers[0]}")
    cloud.work()
    assert hosts(cloud, [boot(apart, "f")]) == [host(cloud, servers[0])]
    settled(cloud)


def test_a_rule_says_how_many_may_be_on_a_host(cloud, group, boot, admin):
    apart = group("anti-affinity", max_server_per_host=2)
    servers = [boot(apart, name, availability_zone="nova:host1") for name in "abc"]
    assert hosts(cloud, servers[:2]) == ["host1", "host1"]
    assert fault(admin, servers[2]) == NONE.format("server group anti-affinity")  # also of a forced host


def test_anti_affine_servers_stay_apart_when_they_move(cloud, group, boot, admin):
    apart = group("anti-affinity")
    first = boot(apart, "a", host="host1")
    second = boot(apart, "b", host="host3")
    with target_cell(cloud.cells["cell1"]):
        ComputeNode.objects.filter(host="host3").update(memory_mb=1 << 20)
    assert move(admin, cloud, first, "host3") == "host1"
    assert move(admin, cloud, first) == "host4"
    assert move(admin, cloud, second) == "host1"
    settled(cloud)


def test_a_server_that_waits_to_be_confirmed_counts_on_both_its_hosts(cloud, group, boot, admin):
    apart = group("anti-affinity")
    first = boot(apart, "a", host="host1")
    assert act(admin, first, {"migrate": {"host": "host3"}}).status_code == 202
    cloud.work()
    assert host(cloud, first) == "host3"
    second = boot(apart, "b", availability_zone="nova:host1")
    assert fault(admin, second) == NONE.format("server group anti-affinity")
    assert act(admin, first, {"confirmResize": None}).status_code == 204
    cloud.work()
    assert host(cloud, boot(apart, "c", availability_zone="nova:host1")) == "host1"
    settled(cloud)


def test_a_boot_that_has_to_try_another_host_stays_apart(cloud, group, boot, admin):
    apart = group("anti-affinity")
    first = boot(apart, "a", host="host3")
    cloud.hosts["host1"].driver.faults.fail("spawn", times=1)
    second = boot(apart, "b")
    assert (host(cloud, first), host(cloud, second)) == ("host3", "host4")
    settled(cloud)


# -- affinity


def test_affine_servers_are_on_one_host(cloud, group, boot, admin):
    together = group("affinity")
    servers = [boot(together, name) for name in "abc"]
    assert len(set(hosts(cloud, servers))) == 1
    elsewhere = boot(together, "d", host="host4" if host(cloud, servers[0]) != "host4" else "host1")
    assert fault(admin, elsewhere) == NONE.format("server group affinity")
    with target_cell(cloud.cell_of(servers[0])):
        ComputeNode.objects.filter(host=host(cloud, servers[0])).update(memory_mb=3 * 512)
    assert fault(admin, boot(together, "e")) == NONE.format("memory")


def test_a_home_where_nobody_is_any_more_binds_nobody(cloud, group, boot, admin):
    together = group("affinity")
    first = boot(together, "a", host="host2")
    assert fault(admin, boot(together, "b", host="host3")) == NONE.format("server group affinity")
    admin.delete(f"/servers/{first}")
    cloud.work()
    assert host(cloud, boot(together, "c", host="host3")) == "host3"
    assert ServerGroup.objects.get(uuid=together).host == "host3"


def test_a_home_in_a_cell_that_is_down_is_not_taken_over(cloud, group, boot, admin):
    together = group("affinity")
    first = boot(together, "a", host="host2")
    circuit_breaker.record_failure(cloud.cells["cell2"].id, "ordered")
    lost = boot(together, "b")
    assert "or the server group is at home elsewhere. Hosts whose cell does not answer" in fault(admin, lost)
    circuit_breaker.record_recovery(cloud.cells["cell2"].id)
    assert hosts(cloud, [first, boot(together, "c")]) == ["host2", "host2"]


def test_the_only_one_of_an_affine_group_may_move_and_takes_the_home_along(cloud, group, boot, admin):
    together = group("affinity")
    first = boot(together, "a", host="host1")
    assert move(admin, cloud, first, "host3") == "host3"
    second = boot(together, "b")
    assert host(cloud, second) == "host3"
    assert move(admin, cloud, second) == "host3"  # not alone any more
    assert NONE.format("server group affinity") in str(cloud.history(second)[-1].fault or cloud.row(second).fault)
    settled(cloud)


def test_nobody_joins_an_affine_server_that_is_between_two_hosts(cloud, group, boot, admin):
    together = group("affinity")
    first = boot(together, "a", host="host1")
    assert act(admin, first, {"migrate": {"host": "host3"}}).status_code == 202
    cloud.work()
    assert fault(admin, boot(together, "b")) == NONE.format("server group affinity")
    assert act(admin, first, {"revertResize": None}).status_code == 202
    cloud.work()
    assert hosts(cloud, [first, boot(together, "c")]) == ["host1", "host1"]
    assert ServerGroup.objects.get(uuid=together).host == "host1"


def test_a_move_that_fails_leaves_the_home_where_the_server_is(cloud, group, boot, admin):
    together = group("affinity")
    first = boot(together, "a", host="host1")
    cloud.hosts["host3"].driver.faults.fail("pre_migrate", times=9)
    assert move(admin, cloud, first, "host3") == "host1"
    assert hosts(cloud, [first, boot(together, "b")]) == ["host1", "host1"]
    settled(cloud)


# -- moves of every kind


def test_an_evacuated_server_stays_apart_from_the_others_and_takes_its_home_along(cloud, group, boot, admin):
    apart, together = group("anti-affinity"), group("affinity")
    lone, first = boot(apart, "a", host="host1"), boot(together, "b", host="host1")
    boot(apart, "c", host="host3")
    with target_cell(cloud.cells["cell1"]):
        ComputeNode.objects.filter(host="host3").update(memory_mb=1 << 20)
    gone_host(admin, cloud)
    for server_id in (lone, first):
        assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert hosts(cloud, [lone, first]) == ["host4", "host3"]
    assert ServerGroup.objects.get(uuid=together).host == "host3"
    assert host(cloud, boot(together, "d")) == "host3"


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity"])
def test_a_server_comes_off_the_shelf_where_its_group_lets_it(policy, cloud, group, boot, admin):
    made = group(policy)
    first = boot(made, "a", host="host1")
    assert act(admin, first, {"shelve": None}).status_code == 202
    cloud.work()
    assert states(cloud, first) == ("shelved_offloaded", None)
    second = boot(made, "b", host="host3")  # nobody holds anything of the group now
    assert host(cloud, second) == "host3"
    with target_cell(cloud.cells["cell1"]):
        ComputeNode.objects.filter(host__in=["host1", "host3"]).update(memory_mb=1 << 20)
    assert act(admin, first, {"unshelve": None}).status_code == 202
    cloud.work()
    assert host(cloud, first) == ("host3" if policy == "affinity" else "host1")


# -- soft ones


def test_soft_policies_are_a_preference(cloud, group, boot, admin):
    apart, together = group("soft-anti-affinity"), group("soft-affinity")
    spread = hosts(cloud, [boot(apart, f"a{n}") for n in range(5)])
    assert sorted(spread[:4]) == ["host1", "host2", "host3", "host4"]
    assert spread[4] in spread[:4]
    homes = hosts(cloud, [boot(together, f"b{n}") for n in range(3)])
    assert len(set(homes)) == 1
    with target_cell(cloud.cell_of(boot(together, "b9"))):
        ComputeNode.objects.filter(host=homes[0]).update(memory_mb=512)
    assert host(cloud, boot(together, "b10")) not in ("", homes[0])


# -- what is left of members


def test_members_whose_servers_are_gone_are_forgotten(cloud, group, boot, admin):
    apart = group("soft-anti-affinity")
    here, gone = boot(apart, "a"), boot(apart, "b")
    waiting = admin.send("post", "/servers", cloud.body("c") | {"os:scheduler_hints": {"group": apart}})
    admin.delete(f"/servers/{waiting.json()['server']['id']}")  # before anybody looked at it
    admin.delete(f"/servers/{gone}")
    assert stale_group_members.remove() == 1  # the other is still somewhere
    cell = cloud.cell_of(gone)
    cloud.work()
    circuit_breaker.record_failure(cell.id, "ordered")
    assert stale_group_members.remove() == 0
    circuit_breaker.record_recovery(cell.id)
    assert stale_group_members.remove() == 1
    assert list(ServerGroupMember.objects.values_list("server_id", flat=True)) == [here]


# -- whoever picks may die


@pytest.mark.parametrize("when", ["before", "inside", "after the work"])
@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
def test_a_conductor_that_dies_while_it_picks_leaves_one_claim_and_one_home(policy, when, cloud, group, boot, admin):
    made = group(policy)
    first = boot(made, "a", host="host1")
    assert act(admin, first, LIVE).status_code == 202
    killed(cloud, until(cloud, "pick"), when)
    cloud.work()
    assert host(cloud, first) in {"host3", "host4"}
    second = host(cloud, boot(made, "b"))
    assert (second == host(cloud, first)) is (policy == "affinity")
    settled(cloud)


def _die(*_):
    raise Killed


@pytest.mark.parametrize("policy", ["affinity", "anti-affinity"])
def test_a_scheduler_that_dies_before_it_commits_binds_nobody(policy, cloud, group, boot, admin, monkeypatch):
    made = group(policy)
    hints = {"os:scheduler_hints": {"group": made}}
    body = cloud.body("a", host="host1") | hints
    server_id = admin.send("post", "/servers", body).json()["server"]["id"]
    with monkeypatch.context() as patch:
        patch.setattr(build.create.Create, "record", _die)  # room is claimed, and nothing is committed
        with pytest.raises(Killed):
            build.place(server_id)
    assert set(cloud.used().values()) == {(0, 0)}
    second = host(cloud, boot(made, "b", host="host2"))
    assert second == "host2"
    BuildRequest.objects.filter(pk=server_id).update(lease_until=None)
    cloud.work()
    if policy == "affinity":
        assert fault(admin, server_id) == NONE.format("server group affinity")  # it asked for host1
    else:
        assert host(cloud, server_id) == "host1"
    settled(cloud)
