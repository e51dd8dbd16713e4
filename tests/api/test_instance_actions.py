"""/servers/{id}/os-instance-actions: what was done to a server, and what became of it."""

from __future__ import annotations

import pytest

from compute.models import Step

BASE = {"action", "instance_uuid", "request_id", "user_id", "project_id", "start_time", "message"}


def said(answer, status):
    assert answer.status_code == status, answer.content
    return next(iter(answer.json().values()))["message"]


@pytest.fixture
def busy(api, cloud):
    """The path of the actions of a server that was created, stopped and started."""
    server_id = cloud.boot(api)
    for key in ("os-stop", "os-start"):
        assert api.send("post", f"/servers/{server_id}/action", {key: None}).status_code == 202
        cloud.work()
    return f"/servers/{server_id}/os-instance-actions"


def actions(answer):
    assert answer.status_code == 200, answer.content
    return [action["action"] for action in answer.json()["instanceActions"]]


def test_actions_are_listed_newest_first(api, reader, busy):
    assert actions(api.get(busy)) == ["start", "stop", "create"]
    assert actions(reader.get(busy)) == ["start", "stop", "create"]


def test_fields_follow_the_microversion(api, busy):
    assert api.get(busy, version="2.57").json()["instanceActions"][0].keys() == BASE
    assert api.get(busy, version="2.58").json()["instanceActions"][0].keys() == BASE | {"updated_at"}


def test_pages_walk_every_action_once(api, busy):
    seen, path = [], f"{busy}?limit=1"
    while path:
        answer = api.get(path).json()
        seen += [action["action"] for action in answer["instanceActions"]]
        links = answer.get("links")
        path = links[0]["href"].partition("/compute/v2.1")[2] if links else None
    assert seen == ["start", "stop", "create"]


def test_paging_means_nothing_before_258(api, busy):
    assert len(actions(api.get(f"{busy}?limit=1", version="2.57"))) == 3
    assert len(actions(api.get(f"{busy}?limit=x", version="2.57"))) == 3
    assert "links" not in api.get(f"{busy}?limit=1", version="2.57").json()


def test_a_page_that_makes_no_sense_is_refused(api, busy):
    for query in ("limit=x", "limit=-1", "marker=req-nope", "changes-since=x", "changes-before=x"):
        assert said(api.get(f"{busy}?{query}"), 400)


def test_actions_of_a_time_span(api, busy):
    assert actions(api.get(f"{busy}?changes-since=2099-01-01T00:00:00Z")) == []
    assert len(actions(api.get(f"{busy}?changes-since=2020-01-01T00:00:00Z"))) == 3
    assert actions(api.get(f"{busy}?changes-before=2020-01-01T00:00:00Z", version="2.66")) == []
    assert len(actions(api.get(f"{busy}?changes-before=2020-01-01T00:00:00Z", version="2.65"))) == 3


def test_one_action_shows_its_steps_to_the_owner_since_251(api, admin, busy):
    path = f"{busy}/{api.get(busy).json()['instanceActions'][1]['request_id']}"
    assert "events" not in api.get(path, version="2.50").json()["instanceAction"]
    assert "events" in admin.get(path, version="2.50").json()["instanceAction"]
    base = {"event", "start_time", "finish_time", "result"}
    for version, mine, admins in [
        ("2.51", set(), {"traceback"}),
        ("2.62", {"hostId"}, {"traceback", "host"}),
        ("2.84", {"hostId", "shutdown"}, {"traceback", "host", "details"}),
    ]:
        event = api.get(path, version=version).json()["instanceAction"]["events"][0]
        assert event.keys() == base | mine, version
        event = admin.get(path, version=version).json()["instanceAction"]["events"][0]
        assert event.keys() == base | mine | admins, version
    event = api.get(path).json()["instanceAction"]["events"][0]
    assert (event["event"], event["result"]) == ("compute_stop_instance", "Success")
    assert event["finish_time"] >= event["start_time"]


def test_what_runs_has_no_result_yet(api, cloud):
    server_id = cloud.boot(api)
    api.send("post", f"/servers/{server_id}/action", {"pause": None})
    path = f"/servers/{server_id}/os-instance-actions"
    newest = api.get(path).json()["instanceActions"][0]
    assert (newest["action"], newest["message"]) == ("pause", None)
    event = api.get(f"{path}/{newest['request_id']}").json()["instanceAction"]["events"][0]
    assert (event["result"], event["finish_time"]) == (None, None)


def test_what_failed_says_error(api, admin, busy, cloud):
    server_id = busy.split("/")[2]
    newest = cloud.history(server_id)[-1]
    from cells.context import target_cell

    with target_cell(cloud.cell_of(server_id)):
        Step.objects.filter(action_id=newest.pk).update(state="failed", traceback="stack")
        type(newest).objects.filter(pk=newest.pk).update(message="Error")
    shown = admin.get(f"{busy}/{newest.request_id}").json()["instanceAction"]
    assert (shown["message"], shown["events"][0]["result"]) == ("Error", "Error")
    assert shown["events"][0]["traceback"] == "stack"
    assert "traceback" not in api.get(f"{busy}/{newest.request_id}").json()["instanceAction"]["events"][0]


def test_what_happened_to_a_deleted_server_can_be_read_since_221(api, cloud, busy):
    server_id = busy.split("/")[2]
    api.delete(f"/servers/{server_id}")
    cloud.work()
    assert actions(api.get(busy, version="2.21")) == ["delete", "start", "stop", "create"]
    request_id = api.get(busy).json()["instanceActions"][0]["request_id"]
    assert api.get(f"{busy}/{request_id}", version="2.21").json()["instanceAction"]["action"] == "delete"
    assert said(api.get(busy, version="2.20"), 404) == f"Instance {server_id} could not be found."
    assert said(api.get(f"{busy}/{request_id}", version="2.20"), 404)


def test_an_action_nobody_asked_for_is_404(api, stranger, busy):
    assert said(api.get(f"{busy}/req-nope"), 404).startswith("Action for request_id req-nope on instance")
    assert said(stranger.get(busy), 404)
    assert said(api.get("/servers/nobody/os-instance-actions"), 404)
