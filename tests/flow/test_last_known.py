"""What an UNKNOWN server was when its cell was last heard of: shown to whoever asks, with its age."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from cells.models import Cell, ServerSnapshot
from compute.models import Instance
from compute.servers import last_known
from tests.flow import stories


def sweep(cloud):
    """What every conductor does by the clock."""
    found = 0
    for cell in cloud.cells.values():
        with target_cell(cell):
            found += last_known.sweep(cell.id)
    return found


def cut_off(cloud, server_id):
    circuit_breaker.record_failure(cloud.cell_of(server_id).id, "cut off")


@pytest.fixture
def lost(api, cloud):
    """A server of a cell that was heard of two hours ago."""
    server_id = cloud.boot(api, "web1")
    sweep(cloud)
    Cell.objects.update(swept_at=timezone.now() - timedelta(hours=2))
    cut_off(cloud, server_id)
    return server_id


@pytest.mark.parametrize("path", ["/servers", "/servers/detail"])
def test_a_list_shows_it_when_asked(api, lost, path):
    server = api.get(f"{path}?last_known=true").json()["servers"][0]
    assert (server["id"], server["status"]) == (lost, "UNKNOWN")
    known = server["last_known"]
    assert (known["name"], known["status"], known["power_state"], known["flavor"]) == ("web1", "ACTIVE", 1, "m1.tiny")
    assert known["age"] == pytest.approx(7200, abs=60)
    assert known["seen_at"].endswith("Z")
    assert "host" not in known


def test_one_server_shows_it_when_asked_and_an_admin_the_host_too(api, admin, cloud, lost):
    shown = api.get(f"/servers/{lost}?last_known=true").json()["server"]
    assert (shown["status"], shown["last_known"]["name"]) == ("UNKNOWN", "web1")
    host = cloud.row(lost).host
    assert admin.get(f"/servers/{lost}?last_known=1").json()["server"]["last_known"]["host"] == host


@pytest.mark.parametrize("query", ["", "?last_known=false"])
def test_nobody_sees_it_who_did_not_ask(api, lost, query):
    assert "last_known" not in api.get(f"/servers/{lost}{query}").json()["server"]
    assert "last_known" not in api.get(f"/servers{query}").json()["servers"][0]


def test_it_is_never_shown_of_a_cell_that_answers(api, cloud):
    server_id = cloud.boot(api)
    sweep(cloud)
    assert "last_known" not in api.get(f"/servers/{server_id}?last_known=true").json()["server"]


@pytest.mark.parametrize("path", ["/servers", "/servers/detail"])
def test_a_wrong_value_is_refused(api, cloud, path):
    assert api.get(f"{path}?last_known=perhaps").status_code == 400


def test_changes_are_followed_and_what_has_not_changed_is_not_copied_again(api, cloud):
    server_id = cloud.boot(api)
    assert sweep(cloud) == 1
    old = timezone.now() - timedelta(hours=1)
    with target_cell(cloud.cell_of(server_id)):
        Instance.objects.update(updated_at=old)
    ServerSnapshot.objects.update(changed_at=timezone.now() - timedelta(minutes=30))
    assert sweep(cloud) == 0
    stories.act(api, server_id, {"os-stop": None})
    cloud.work()
    assert sweep(cloud) == 1
    assert ServerSnapshot.objects.get(pk=server_id).vm_state == "stopped"


def test_a_deleted_server_is_forgotten(api, cloud):
    server_id = cloud.boot(api)
    sweep(cloud)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    sweep(cloud)
    assert not ServerSnapshot.objects.exists()


def test_many_servers_are_copied_in_batches_whatever_their_times(api, cloud, monkeypatch):
    monkeypatch.setattr(last_known, "BATCH", 2)
    servers = {cloud.boot(api, f"n{number}") for number in range(5)}
    for cell in cloud.cells.values():
        with target_cell(cell):
            Instance.objects.update(updated_at=timezone.now())
    assert sweep(cloud) == 5
    assert set(ServerSnapshot.objects.values_list("pk", flat=True)) == servers


def test_strangers_see_nothing(stranger, lost):
    assert stranger.get(f"/servers/{lost}?last_known=true").status_code == 404
    assert stranger.get("/servers?last_known=true").json()["servers"] == []
