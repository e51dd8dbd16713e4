"""Events of servers whose cell is down are accepted, and delivered when it is back: each once, in their order."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import DeferredEvent
from compute.external_events import deferred, journal
from compute.models import InstanceAction
from tests.flow import stories

PATH = "/os-server-external-events"


@pytest.fixture
def server_id(api, cloud):
    """A server that runs."""
    return cloud.boot(api)


@pytest.fixture
def away(server_id, cloud):
    """A server whose cell does not answer; its id."""
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "cut off")
    return server_id


def say(admin, server_id, *tags, request_id="", name="network-changed"):
    """Events with these tags; the code of each."""
    said = [{"name": name, "server_uuid": server_id, "tag": tag} for tag in tags]
    header = {"HTTP_X_OPENSTACK_REQUEST_ID": request_id} if request_id else {}
    answer = admin.send("post", PATH, {"events": said}, **header)
    return [one["code"] for one in answer.json()["events"]]


def comes_back(cloud, server_id):
    circuit_breaker.record_recovery(cloud.cell_of(server_id).id)


def heard(cloud, server_id):
    """The tags of what its journal has, in order."""
    return [one.params["event"]["tag"] for one in cloud.history(server_id) if "event" in one.params]


def kept():
    return list(DeferredEvent.objects.order_by("pk").values_list("tag", flat=True))


def test_it_is_accepted_at_once_and_delivered_when_the_cell_is_back(admin, cloud, away):
    request_id = f"req-{uuid4()}"
    assert say(admin, away, "a", "b", request_id=request_id) == [200, 200]
    assert (deferred.deliver(), kept()) == (0, ["a", "b"])
    comes_back(cloud, away)
    assert (deferred.deliver(), kept(), heard(cloud, away)) == (2, [], ["a", "b"])
    assert {one.request_id for one in cloud.history(away)[-2:]} == {request_id}
    assert {one.user_id for one in cloud.history(away)[-2:]} == {admin.caller.user_id}
    cloud.work()
    stories.settled(cloud)


def test_what_comes_when_the_cell_is_back_is_heard_after_what_was_kept(admin, cloud, away):
    say(admin, away, "kept")
    comes_back(cloud, away)
    assert say(admin, away, "new") == [200]
    assert (heard(cloud, away), kept()) == ([], ["kept", "new"])
    deferred.deliver()
    assert say(admin, away, "newer") == [200]
    assert heard(cloud, away) == ["kept", "new", "newer"]


def test_a_server_that_was_deleted_meanwhile_gets_nothing(api, admin, cloud, away):
    say(admin, away, "a")
    comes_back(cloud, away)
    api.delete(f"/servers/{away}")
    cloud.work()
    assert (deferred.deliver(), kept(), heard(cloud, away)) == (1, [], [])


def test_many_schedulers_deliver_each_once_and_in_order(admin, cloud, away, monkeypatch):
    monkeypatch.setattr(deferred, "BATCH", 3)
    tags = [str(number) for number in range(20)]
    say(admin, away, *tags)
    comes_back(cloud, away)
    done = stories.at_once(4, lambda _: deferred.deliver())
    while kept():
        done.append(deferred.deliver())
    assert (sum(done), heard(cloud, away)) == (20, tags)


def test_a_scheduler_killed_before_it_could_say_so_is_followed_by_another_one(admin, cloud, away, monkeypatch):
    say(admin, away, "a")
    comes_back(cloud, away)
    with monkeypatch.context() as broken:
        broken.setattr(deferred, "_tell", _killed)
        broken.setattr(DeferredEvent.objects, "filter", _killed)
        with pytest.raises(stories.Killed):
            deferred.deliver()
    assert (heard(cloud, away), kept()) == (["a"], ["a"])
    assert (deferred.deliver(), heard(cloud, away)) == (1, ["a"])


def test_a_cell_that_fails_after_it_wrote_hears_it_once(api, admin, cloud, server_id, monkeypatch):
    real = journal.record

    def cut_off(events):
        real(events)
        raise OperationalError("cut off")

    with monkeypatch.context() as broken:
        broken.setattr(journal, "record", cut_off)
        assert say(admin, server_id, "a", "b") == [200, 200]
    assert (heard(cloud, server_id), kept()) == (["a", "b"], ["a", "b"])
    comes_back(cloud, server_id)
    assert stories.act(api, server_id, {"pause": None}).status_code == 202  # it is not the newest any more
    assert (deferred.deliver(), kept(), heard(cloud, server_id)) == (2, [], ["a", "b"])


def test_a_cell_that_fails_before_it_wrote_hears_it_later(admin, cloud, server_id, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(journal, "_write", _cut_off)
        assert say(admin, server_id, "a") == [200]
    assert heard(cloud, server_id) == []
    comes_back(cloud, server_id)
    assert (deferred.deliver(), heard(cloud, server_id)) == (1, ["a"])


def test_an_event_that_cannot_be_written_is_given_up_and_holds_up_nobody(api, admin, cloud, monkeypatch):
    first, bad = cloud.boot(api), cloud.boot(api, "b")
    while cloud.cell_of(first) != cloud.cell_of(bad):
        bad = cloud.boot(api, "c")
    circuit_breaker.record_failure(cloud.cell_of(first).id, "cut off")
    for server_id in (bad, first):
        say(admin, server_id, "a")
    comes_back(cloud, first)
    real = journal._write

    def breaks(events, hosts):
        if bad in events:
            raise KeyError("a bug")
        real(events, hosts)

    monkeypatch.setattr(journal, "_write", breaks)
    assert (deferred.deliver(), kept()) == (2, [])
    assert (heard(cloud, first), heard(cloud, bad)) == (["a"], [])


# -- requests that are repeated


def test_a_request_that_is_repeated_is_recorded_once(admin, cloud, server_id):
    request_id = f"req-{uuid4()}"
    for _ in range(3):
        assert say(admin, server_id, "a", "b", request_id=request_id) == [200, 200]
    assert heard(cloud, server_id) == ["a", "b"]


def test_a_request_that_is_repeated_while_the_cell_is_down_is_kept_once(admin, cloud, away):
    request_id = f"req-{uuid4()}"
    say(admin, away, "a", "b", request_id=request_id)
    say(admin, away, "a", "b", request_id=request_id)
    assert kept() == ["a", "b"]
    comes_back(cloud, away)
    say(admin, away, "a", "b", request_id=request_id)
    deferred.deliver()
    say(admin, away, "a", "b", request_id=request_id)
    assert heard(cloud, away) == ["a", "b"]


def test_requests_that_are_repeated_at_once_are_recorded_once(admin, cloud, server_id):
    request_id = f"req-{uuid4()}"
    assert stories.at_once(4, lambda _: say(admin, server_id, "a", request_id=request_id)) == [[200]] * 4
    while kept():
        deferred.deliver()
    assert heard(cloud, server_id) == ["a"]


def test_a_power_sync_that_says_everything_under_one_id_is_heard_each_time(api, admin, cloud, server_id):
    """As Ironic's does: all its events, of months, have the request id of the conductor's start."""
    request_id = f"req-{uuid4()}"
    for tag in ("1", "2", "1", "2"):
        say(admin, server_id, tag, request_id=request_id)
    stories.act(api, server_id, {"lock": None})
    say(admin, server_id, "2", request_id=request_id)
    assert heard(cloud, server_id) == ["1", "2", "1", "2", "2"]


def test_an_event_that_is_shown_has_a_request_id_of_its_own_where_the_sent_one_is_taken(api, admin, cloud, server_id):
    request_id = f"req-{uuid4()}"
    for tag in ("1", "2"):
        say(admin, server_id, tag, request_id=request_id, name="volume-extended")
    [first, second] = cloud.history(server_id)[-2:]
    assert first.request_id == request_id
    assert second.request_id != request_id
    path = f"/servers/{server_id}/os-instance-actions"
    for one in (first, second):
        shown = api.get(f"{path}/{one.request_id}").json()["instanceAction"]
        assert (shown["action"], shown["request_id"]) == ("extend_volume", one.request_id)


def test_minutes_later_the_same_words_are_news(admin, cloud, server_id):
    request_id = f"req-{uuid4()}"
    say(admin, server_id, "a", request_id=request_id)
    with target_cell(cloud.cell_of(server_id)):
        [action] = InstanceAction.objects.filter(key="ExternalEvent")
        action.params["event"]["received_at"] = (timezone.now() - timedelta(minutes=10)).isoformat()
        action.save(update_fields=["params"])
    say(admin, server_id, "a", request_id=request_id)
    assert heard(cloud, server_id) == ["a", "a"]


def test_a_server_somebody_is_just_changing_holds_up_nobody(api, admin, cloud, server_id, monkeypatch):
    """PostgreSQL leaves out its row; SQLite has one lock for all, so there the row is left out by hand."""
    real = journal._lock
    monkeypatch.setattr(journal, "PAUSE", 0)
    monkeypatch.setattr(journal, "_lock", lambda servers: real(set(servers) - {server_id}))
    other = cloud.boot(api, "b")
    said = [{"name": "network-changed", "server_uuid": one} for one in (server_id, other)]
    answer = admin.send("post", PATH, {"events": said})
    assert [one["code"] for one in answer.json()["events"]] == [200, 200]
    assert (len(heard(cloud, server_id)), len(heard(cloud, other))) == (0, 1)
    assert deferred.deliver() == 0
    monkeypatch.setattr(journal, "_lock", real)
    assert (deferred.deliver(), len(heard(cloud, server_id))) == (1, 1)


def _killed(*_, **__):
    raise stories.Killed


def _cut_off(*_):
    raise OperationalError("cut off")
