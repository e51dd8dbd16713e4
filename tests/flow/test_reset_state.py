"""An operator says what state a server is in."""

from __future__ import annotations

import pytest

from tests.flow import stories

ERROR, ACTIVE = {"os-resetState": {"state": "error"}}, {"os-resetState": {"state": "active"}}


def test_a_reset_is_there_at_once_and_in_the_history(api, admin, cloud):
    server_id = cloud.boot(api)
    assert stories.act(admin, server_id, ERROR).status_code == 202
    assert stories.states(cloud, server_id) == ("error", None)
    assert api.get(f"/servers/{server_id}").json()["server"]["status"] == "ERROR"
    assert stories.last_action(admin, server_id)["action"] == "resetState"
    assert stories.act(admin, server_id, ACTIVE).status_code == 202
    assert stories.states(cloud, server_id) == ("active", None)
    stories.settled(cloud)


def test_what_nobody_began_is_cancelled_by_a_reset(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"pause": None})
    stories.act(admin, server_id, ACTIVE)
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert "pause" not in [verb for verb, _ in cloud.host_of(server_id).driver.calls]
    stories.settled(cloud)


def test_what_runs_during_a_reset_ends_without_touching_the_record(api, admin, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    stories.act(api, server_id, {"os-stop": None})
    stop = host.begin(cloud.queued()[0][1].pk)
    stories.act(admin, server_id, ERROR)
    host.finish(stop)
    assert stories.states(cloud, server_id) == ("error", None)
    assert cloud.history(server_id)[1].outcome.startswith("preempted")
    stories.settled(cloud)


def test_a_step_whose_host_died_is_not_run_again_after_a_reset(api, admin, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    stories.act(api, server_id, {"os-stop": None})
    host.begin(cloud.queued()[0][1].pk)
    stories.act(admin, server_id, ACTIVE)
    assert host.restart() == 1
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def test_a_snapshot_taken_back_by_a_reset_leaves_no_image_behind(api, admin, cloud):
    server_id = cloud.boot(api)
    image_id = stories.act(api, server_id, {"createImage": {"name": "snap"}}).json()["image_id"]
    stories.act(admin, server_id, ACTIVE)
    cloud.work()
    assert api.get(f"/image/v2/images/{image_id}").status_code == 404
    stories.settled(cloud)


def test_a_server_without_a_host_cannot_be_said_to_be_active(api, admin, cloud):
    server_id = cloud.boot(api, flavorRef=_too_large())
    answer = stories.act(admin, server_id, ACTIVE)
    assert answer.status_code == 409
    assert stories.states(cloud, server_id) == ("error", None)


@pytest.mark.parametrize("value", [None, {}, {"state": "deleted"}, {"state": "active", "more": 1}])
def test_a_state_an_operator_cannot_set_is_a_bad_request(value, api, admin, cloud):
    server_id = cloud.boot(api)
    assert stories.act(admin, server_id, {"os-resetState": value}).status_code == 400


def test_only_admins_reset_and_a_lock_does_not_hold_them(api, admin, reader, stranger, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"lock": None})
    assert stories.act(api, server_id, ERROR).status_code == 403
    assert stories.act(reader, server_id, ERROR).status_code == 403
    assert stories.act(stranger, server_id, ERROR).status_code == 404
    assert stories.act(admin, server_id, ERROR).status_code == 202


def _too_large():
    from compute.models import Flavor

    Flavor.objects.create(flavor_id="9", name="giant", vcpus=1, memory_mb=50_000, disk_gb=1 << 20)
    return "9"
