"""Deleting a server: from every state, whatever is going on."""

from __future__ import annotations

import pytest
from django.utils import timezone

from cells.models import BuildRequest, InstanceMapping
from compute.actions.delete import Delete
from compute.periodic import stale_delete_flags
from compute.placement import quota
from compute.virt.base import HypervisorUnavailable
from tests.conftest import PROJECT
from tests.flow import stories


def _is_gone(api, cloud, server_id):
    assert api.get(f"/servers/{server_id}").status_code == 404
    row = cloud.row(server_id)
    assert (row.deleted, row.vm_state, row.task_state) == (True, "deleted", None)
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete
    assert quota.usage(PROJECT) == quota.Usage()
    assert set(cloud.used().values()) == {(0, 0)}
    stories.settled(cloud)


@pytest.mark.parametrize("where", [(), ("stop",), ("pause",), ("suspend",)], ids=str)
def test_a_server_is_deleted_from_every_state(where, api, cloud):
    server_id = cloud.boot(api)
    stories.lead(api, cloud, server_id, where)
    before = cloud.row(server_id).vm_state
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert stories.states(cloud, server_id) == (before, "deleting")
    assert api.get(f"/servers/{server_id}").json()["server"]["OS-EXT-STS:task_state"] == "deleting"
    cloud.work()
    _is_gone(api, cloud, server_id)
    done = stories.last_action(api, server_id)
    assert (done["action"], done["message"]) == ("delete", None)
    assert [(e["event"], e["result"]) for e in done["events"]] == [("compute_terminate_instance", "Success")]


@pytest.mark.parametrize("name", sorted(stories.STORIES))
def test_a_delete_takes_a_server_from_every_task_nobody_began(name, api, cloud):
    server_id = stories.ready(api, cloud, stories.STORIES[name])
    stories.act(api, server_id, stories.STORIES[name].body)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_delete_waits_for_the_step_that_runs_and_wins(api, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    stories.act(api, server_id, {"os-stop": None})
    stop = host.begin(cloud.queued()[0][1].pk)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert not cloud.row(server_id).deleted
    host.finish(stop)
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_build_that_is_rerun_after_a_delete_spawns_no_guest(api, cloud):
    server_id = _requested(api, cloud)
    host = cloud.host_of(server_id)
    [(_, build)] = cloud.queued()
    host.begin(build.pk)
    api.delete(f"/servers/{server_id}")
    host.restart()
    terminate = next(step for _, step in cloud.queued() if step.name == "terminate")
    host.run(terminate.pk)  # its message came first
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_build_that_waits_for_its_next_try_is_cancelled_by_a_delete(api, cloud):
    for host in cloud.hosts.values():
        host.driver.faults.fail("spawn", times=1, error=HypervisorUnavailable)
    server_id = cloud.boot(api)
    assert stories.states(cloud, server_id) == ("building", "spawning")
    api.delete(f"/servers/{server_id}")
    stories.later(cloud)
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_build_that_fails_for_a_while_after_a_delete_is_not_tried_again(api, cloud):
    server_id = _requested(api, cloud)
    host = cloud.host_of(server_id)
    host.driver.faults.fail("spawn", times=1, error=HypervisorUnavailable)
    build = host.begin(cloud.queued()[0][1].pk)
    api.delete(f"/servers/{server_id}")
    host.finish(build)
    cloud.work()
    stories.later(cloud)
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_deleting_twice_is_success_and_happens_once(api, cloud):
    server_id = cloud.boot(api)
    assert [api.delete(f"/servers/{server_id}").status_code for _ in range(2)] == [204, 204]
    cloud.work()
    assert [action.action for action in cloud.history(server_id)] == ["create", "delete"]
    assert api.delete(f"/servers/{server_id}").status_code == 404


def test_a_server_that_could_not_be_deleted_says_so_and_can_be_deleted_again(api, admin, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.fail("destroy")
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert stories.states(cloud, server_id) == ("error", None)
    assert api.get(f"/servers/{server_id}").json()["server"]["fault"]["message"] == "destroy failed as injected"
    assert stories.last_action(admin, server_id)["message"] == "Error"
    assert cloud.used()[cloud.row(server_id).host] == (1, 512)  # the guest is still there
    assert api.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_delete_waits_for_a_hypervisor_that_comes_back(api, cloud):
    server_id = cloud.boot(api)
    driver = cloud.host_of(server_id).driver
    driver.go_away()
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", "deleting")
    driver.come_back()
    stories.later(cloud)
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_nothing_can_be_asked_of_a_server_that_is_being_deleted(api, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    answer = stories.act(api, server_id, {"pause": None})
    text = f"Cannot 'pause' instance {server_id} while it is in task_state deleting"
    assert (answer.status_code, stories.message(answer)) == (409, text)


def test_a_reader_cannot_delete_and_a_stranger_sees_nothing(api, reader, stranger, cloud):
    server_id = cloud.boot(api)
    assert reader.delete(f"/servers/{server_id}").status_code == 403
    assert stranger.delete(f"/servers/{server_id}").status_code == 404
    assert stories.states(cloud, server_id) == ("active", None)


def test_an_empty_action_key_is_no_back_door_to_actions_without_one(api, cloud):
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, {"": None})
    assert (answer.status_code, stories.message(answer)) == (400, "There is no such action: ")
    assert stories.states(cloud, server_id) == ("active", None)


def _requested(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    cloud.schedule()
    return server_id


def test_a_delete_whose_api_process_died_half_way_can_be_sent_again_and_frees_the_quota(
    api, cloud, monkeypatch
):
    server_id = cloud.boot(api)
    submit = Delete.submit

    def dies_after_it(self, *asked):
        submit(self, *asked)
        raise stories.Killed

    monkeypatch.setattr(Delete, "submit", dies_after_it)
    with pytest.raises(stories.Killed):
        api.delete(f"/servers/{server_id}")
    monkeypatch.undo()
    cloud.work()
    _is_gone(api, cloud, server_id)


def test_a_server_whose_delete_failed_is_in_the_quota_again(api, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.fail("destroy", times=1)
    api.delete(f"/servers/{server_id}")
    assert quota.usage(PROJECT).instances == 0

    cloud.work()

    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ERROR"
    assert quota.usage(PROJECT).instances == 1
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert quota.usage(PROJECT).instances == 0


def test_a_delete_an_operator_took_back_leaves_the_server_in_the_quota(api, admin, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    admin.send("post", f"/servers/{server_id}/action", {"os-resetState": {"state": "active"}})

    cloud.work()

    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ACTIVE"
    assert quota.usage(PROJECT).instances == 1


def test_a_server_whose_delete_died_on_its_way_to_the_cell_is_in_the_quota_again(api, cloud, settings):
    """The API was killed, or the cell's database gone, between the flag on the global side and the delete."""
    halfway, deleting, deleted = (cloud.boot(api, name) for name in ("halfway", "deleting", "deleted"))
    api.delete(f"/servers/{deleted}")
    cloud.work()
    api.delete(f"/servers/{deleting}")
    InstanceMapping.objects.filter(pk=halfway).update(queued_for_delete=True)
    settings.RESEND_AFTER = 60
    assert stale_delete_flags.clear() == 0  # it may be on its way
    settings.RESEND_AFTER = 0

    assert stale_delete_flags.clear() == 1

    flagged = InstanceMapping.objects.filter(queued_for_delete=True).values_list("pk", flat=True)
    assert set(flagged) == {deleting, deleted}
    assert quota.usage(PROJECT).instances == 1
    cloud.work()
    assert stale_delete_flags.clear() == 0
    assert api.delete(f"/servers/{halfway}").status_code == 204
    cloud.work()
    _is_gone(api, cloud, halfway)


def test_a_server_deleted_while_it_is_placed_stays_out_of_the_quota(api, cloud, settings):
    settings.RESEND_AFTER = 0
    server_id = _requested(api, cloud)
    request = BuildRequest(server_id=server_id, delete_requested=True, instance={}, created_at=timezone.now())
    request.save()
    InstanceMapping.objects.filter(pk=server_id).update(queued_for_delete=True)
    assert stale_delete_flags.clear() == 0
    assert InstanceMapping.objects.get(pk=server_id).queued_for_delete
