"""What a server printed: the host answers while the client waits."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from django.db import connections

from cells.context import target_cell
from compute.models import HostCall, Service
from compute.operations import host_request
from tasks import host as host_tasks
from tasks import worker
from tests.conftest import url_of
from tests.flow import stories

ASK = {"os-getConsoleOutput": {}}


@contextmanager
def answering(cloud, server_id, settings, after=lambda: None):
    """The server's host as a worker process, that answers the first call that comes."""
    host = cloud.host_of(server_id)
    settings.ROLE, settings.HOST, settings.DRIVER = "host", host.name, "fake"
    settings.CELL_UUID, settings.CELL_DATABASE_URL = host.cell.id, url_of(host.cell.alias)
    settings.CELL_BROKER_URL = "memory://"
    me = worker.register()
    me.driver = host.driver
    stop, answered = threading.Event(), threading.Event()

    def work():
        try:
            while not stop.wait(0.005):
                with target_cell(host.cell):
                    call = HostCall.objects.filter(claimed_at__isnull=True).first()
                if call is not None:
                    host_tasks.answer_call(call.pk)
                    host_tasks.answer_call(call.pk)  # delivered twice
                    answered.set()
                    return
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield answered
    finally:
        stop.set()
        thread.join()
        worker._current = None


def test_the_console_is_answered_by_the_host_and_nothing_is_left(api, cloud, settings):
    server_id = cloud.boot(api)
    with answering(cloud, server_id, settings):
        answer = stories.act(api, server_id, ASK)
    assert answer.status_code == 200
    assert answer.json()["output"].endswith("STILLWATER READY\n")
    with target_cell(cloud.cell_of(server_id)):
        assert not HostCall.objects.exists()
    assert [action.action for action in cloud.history(server_id)] == ["create"]
    stories.settled(cloud)


@pytest.mark.parametrize(("length", "pieces"), [
    (3, 3), ("3", 3), (2, 2), (1, 1), (0, 1), (None, 5), (-1, 5), (9, 5),
], ids=str)  # fmt: skip
def test_a_console_of_length_3_has_three_pieces_when_it_is_split_at_newlines(length, pieces, api, cloud, settings):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"reboot": {"type": "HARD"}})
    cloud.work()
    whole = cloud.host_of(server_id).driver.console_output(server_id).split("\n")
    with answering(cloud, server_id, settings):
        answer = stories.act(api, server_id, {"os-getConsoleOutput": {"length": length}})
    assert answer.status_code == 200, answer.content
    said = answer.json()["output"].split("\n")
    assert len(said) == pieces
    assert said == (whole[-pieces:] if length != 0 else [""])


def test_a_busy_or_locked_server_still_shows_its_console(api, cloud, settings):
    server_id = cloud.boot(api)
    stories.act(api, server_id, {"lock": None})
    with answering(cloud, server_id, settings):
        assert stories.act(api, server_id, ASK).status_code == 200


def test_what_the_host_could_not_do_is_said(api, cloud, settings):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.fail("console_output")
    with answering(cloud, server_id, settings):
        answer = stories.act(api, server_id, ASK)
    assert (answer.status_code, stories.message(answer)) == (503, "console_output failed as injected")


def test_a_host_that_is_down_is_not_waited_for(api, cloud):
    server_id = cloud.boot(api)
    with target_cell(cloud.cell_of(server_id)):
        Service.objects.update(forced_down=True)
    answer = stories.act(api, server_id, ASK)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    with target_cell(cloud.cell_of(server_id)):
        assert not HostCall.objects.exists()


def test_a_host_that_stays_silent_is_waited_for_a_while(api, cloud, monkeypatch):
    monkeypatch.setattr(host_request, "DEADLINE", 0.05)
    server_id = cloud.boot(api)
    answer = stories.act(api, server_id, ASK)
    assert answer.status_code == 503
    assert "did not answer within" in stories.message(answer)


def test_a_host_that_is_too_late_answers_nobody(api, cloud, settings, monkeypatch):
    monkeypatch.setattr(host_request, "DEADLINE", 0.0)
    server_id = cloud.boot(api)
    with answering(cloud, server_id, settings) as answered:
        stories.act(api, server_id, ASK)
        assert answered.wait(10)
    assert ("console_output", server_id) not in cloud.host_of(server_id).driver.calls


def test_a_server_that_is_not_placed_has_no_console(api, cloud):
    server_id = api.send("post", "/servers", cloud.body()).json()["server"]["id"]
    answer = stories.act(api, server_id, ASK)
    assert (answer.status_code, stories.message(answer)) == (409, f"Instance {server_id} is not ready")


def test_readers_and_strangers_get_no_console(reader, stranger, api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(reader, server_id, ASK).status_code == 403
    assert stories.act(stranger, server_id, ASK).status_code == 404


@pytest.mark.parametrize("value", [{"length": "x"}, {"length": -2}, {"length": 1.5}, {"lines": 1}], ids=str)
def test_a_length_that_is_none_is_a_bad_request(value, api, cloud):
    server_id = cloud.boot(api)
    assert stories.act(api, server_id, {"os-getConsoleOutput": value}).status_code == 400
