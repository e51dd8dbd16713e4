"""Events nobody waits for: the server's host hears them, and they are no history."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
import structlog
from django.utils import timezone

from cells.context import target_cell
from compute import actions
from compute.external_events import heard
from compute.lifecycle import Run
from compute.models import InstanceAction
from compute.virt.base import NotSupported
from tests.flow import stories

PATH = "/os-server-external-events"


def say(admin, server_id, name="network-changed", **more):
    return admin.send("post", PATH, {"events": [{"name": name, "server_uuid": server_id, **more}]})


def test_the_host_says_that_it_did_not_expect_it_and_the_server_stays_as_it_is(api, admin, cloud):
    server_id = cloud.boot(api)
    assert say(admin, server_id, "network-vif-plugged", tag="port-1").status_code == 200
    with structlog.testing.capture_logs() as lines:
        cloud.work()
    [line] = [one for one in lines if one["event"] == "event.unexpected"]
    assert (line["event_name"], line["tag"], line["status"]) == ("network-vif-plugged", "port-1", "completed")
    assert stories.states(cloud, server_id) == ("active", None)
    stories.settled(cloud)


def test_it_is_not_in_the_servers_history(api, admin, cloud):
    server_id = cloud.boot(api)
    request_id = say(admin, server_id).headers["X-OpenStack-Request-Id"]
    cloud.work()
    path = f"/servers/{server_id}/os-instance-actions"
    assert [one["action"] for one in api.get(path).json()["instanceActions"]] == ["create"]
    assert api.get(f"{path}/{request_id}").status_code == 404


def test_it_waits_for_its_turn_and_goes_where_the_server_went(api, admin, cloud):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"pause": None})
    begun = cloud.host_of(server_id).begin(stories.only_step(cloud).pk)
    assert say(admin, server_id).status_code == 200
    assert cloud.host_of(server_id).begin(cloud.queued()[0][1].pk) is None
    cloud.host_of(server_id).finish(begun)
    cloud.work()
    stories.settled(cloud)


@pytest.mark.parametrize("said", [{"name": "network-changed"}, {"name": "volume-extended", "tag": "v"}])
@pytest.mark.parametrize("heard_already", [False, True])
def test_a_host_killed_while_it_hears_does_so_again_in_its_next_life(api, admin, cloud, said, heard_already):
    server_id = cloud.boot(api)
    assert say(admin, server_id, **said).status_code == 200
    host = cloud.host_of(server_id)
    begun = host.begin(stories.only_step(cloud).pk)
    if heard_already:
        with target_cell(host.cell), suppress(NotSupported):
            action = actions.named(begun.action.key)
            getattr(action, begun.name)(Run(cloud.row(server_id), begun.action, begun, host.driver))
    assert host.restart() == 1
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    stories.settled(cloud)


def test_the_events_of_a_deleted_server_come_to_nothing(api, admin, cloud):
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    assert say(admin, server_id).status_code == 200
    cloud.work()
    stories.settled(cloud)
    assert say(admin, server_id).json()["events"][0]["code"] == 404


def test_they_do_not_pile_up(api, admin, cloud):
    server_id = cloud.boot(api)
    say(admin, server_id)
    cloud.work()
    say(admin, server_id, tag="waits")
    with target_cell(cloud.cell_of(server_id)):
        assert heard.forget() == 0
        long_ago = timezone.now() - timedelta(hours=2)
        InstanceAction.objects.filter(key="HearEvent").update(started_at=long_ago)
        InstanceAction.objects.filter(key="HearEvent", finished_at__isnull=False).update(finished_at=long_ago)
        assert heard.forget() == 1
        assert [one.params["event"]["tag"] for one in InstanceAction.objects.filter(key="HearEvent")] == ["waits"]
    cloud.work()
    stories.settled(cloud)
