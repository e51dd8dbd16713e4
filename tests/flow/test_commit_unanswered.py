"""The database of a cell is cut off at the COMMIT of an accepted request, before it or behind it: who can tell?"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from cells import circuit_breaker
from cells.context import target_cell
from cloud.images.models import Image
from compute.models import InstanceAction
from compute.periodic import abandoned_snapshots
from tests.flow import stories
from tests.flow.stories import act, message

IMAGES = {
    "createImage": {"name": "copy"},
    "createBackup": {"name": "copy", "backup_type": "daily", "rotation": 2},
}
OTHERS = {"os-stop": None, "shelve": None, "reboot": {"type": "HARD"}, "lock": None}
BODIES = [pytest.param({key: body}, id=key) for key, body in (IMAGES | OTHERS).items()]


@pytest.fixture
def cut(monkeypatch, cloud, api, settings):
    """`cut(done=…)`: a server, and a context in which the next COMMIT in its cell gets no answer, done or not."""
    settings.RESEND_AFTER = 0
    server_id = cloud.boot(api)
    cell = cloud.cell_of(server_id)
    really = BaseDatabaseWrapper._commit

    @contextmanager
    def at_commit(*, done):
        def commit(connection):
            if connection.alias != cell.alias:
                return really(connection)
            patch.undo()
            if done:
                really(connection)
            connection.errors_occurred = True
            raise OperationalError("server closed the connection unexpectedly")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BaseDatabaseWrapper, "_commit", commit)
            yield server_id
        connections[cell.alias].close_if_unusable_or_obsolete()
        circuit_breaker.record_recovery(cell.pk)

    return at_commit


def asked(cloud, server_id):
    """What is on record as asked of the server, but for its boot."""
    with target_cell(cloud.cell_of(server_id)):
        return list(InstanceAction.objects.filter(server_id=server_id).exclude(action="create"))


def copies(cloud):
    """Images that somebody can see, but for the one to boot from."""
    found = Image.objects.exclude(pk=cloud.image.pk).exclude(status="deleted")
    return list(found.values_list("name", "status"))


def ask(api, server_id, body):
    answer = act(api, server_id, body)
    assert answer.status_code == 503, answer.content
    assert "does not answer now" in message(answer)
    assert answer["Retry-After"]


@pytest.mark.parametrize("body", BODIES)
def test_what_was_committed_is_carried_out_though_the_client_was_told_503(body, api, cloud, cut):
    with cut(done=True) as server_id:
        ask(api, server_id, body)
    [action] = asked(cloud, server_id)
    abandoned_snapshots.discard()
    cloud.work()
    [action] = asked(cloud, server_id)
    assert (action.finished_at is not None, action.message) == (True, None)
    expected = "copy" if next(iter(body)) in IMAGES else "a-shelved" if "shelve" in body else ""
    assert copies(cloud) == ([(expected, "active")] if expected else [])
    stories.settled(cloud)


@pytest.mark.parametrize("body", BODIES)
def test_what_was_not_committed_leaves_nothing(body, api, cloud, cut):
    with cut(done=False) as server_id:
        ask(api, server_id, body)
    assert asked(cloud, server_id) == []
    assert stories.states(cloud, server_id) == ("active", None)
    abandoned_snapshots.discard()  # a minute later
    assert copies(cloud) == []
    assert act(api, server_id, body).status_code in (200, 202)
    cloud.work()
    stories.settled(cloud)


@pytest.mark.parametrize("key", IMAGES)
def test_a_refused_copy_leaves_no_image(key, api, cloud):
    server_id = cloud.boot(api)
    act(api, server_id, {"suspend": None})
    assert act(api, server_id, {key: IMAGES[key]}).status_code == 409
    assert copies(cloud) == []
