"""Watching servers move, ending that early, and reading afterwards how it went."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connections
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from cells import circuit_breaker
from cells.context import target_cell
from compute.migration import history
from compute.models import InstanceAction, Service, Step
from compute.operations import registry
from tests.conftest import OTHER_PROJECT, client
from tests.flow import stories, two_hosts
from tests.flow.stories import act, message
from tests.flow.two_hosts import LIVE, booted, claimed, homes, until
from tests.live.cloud import eventually

LATEST = "2.80"
LIVE_STEPS = [spec.name for spec in registry.named("MigrateLive").steps]


def asked(admin, cloud):
    server_id = booted(admin, cloud)
    assert act(admin, server_id, LIVE).status_code == 202
    return server_id


def listed(api, server_id, version=LATEST):
    answer = api.get(f"/servers/{server_id}/migrations", version=version)
    assert answer.status_code == 200, answer.content
    return answer.json()["migrations"]


def every(api, query="", version=LATEST):
    answer = api.get(f"/os-migrations{query}", version=version)
    assert answer.status_code == 200, answer.content
    return answer.json()["migrations"]


def abort(api, server_id, migration, version=LATEST):
    return api.delete(f"/servers/{server_id}/migrations/{migration['id']}", version=version)


def force(api, server_id, migration, version=LATEST):
    path = f"/servers/{server_id}/migrations/{migration['id']}/action"
    return api.send("post", path, {"force_complete": None}, version=version)


@contextmanager
def on_its_way(cloud, server_id, seconds=60):
    """The guest is being handed over, which takes so long; the step has ended with the block."""
    step = until(cloud, "migrate_out")
    source = cloud.hosts["host1"]
    source.driver.faults.delay("migrate_out", seconds)

    def migrate_out():
        try:
            source.run(step.pk)
        finally:
            connections.close_all()

    thread = threading.Thread(target=migrate_out)
    thread.start()
    eventually("it shows how far it is", lambda: "progress" in two_hosts.action_of(cloud, server_id).params, 20, 0.05)
    yield
    thread.join(10)
    assert not thread.is_alive()


def stayed(cloud, server_id):
    cloud.work()
    assert stories.states(cloud, server_id) == ("active", None)
    assert homes(cloud, server_id) == ["host1"]
    assert claimed(cloud, server_id) == {"host1"}
    stories.settled(cloud)


def details(cloud, server_id):
    """What the step that moved the guest says."""
    with target_cell(cloud.cells["cell1"]):
        return Step.objects.get(server_id=server_id, name="migrate_out").details


def test_a_migration_shows_what_it_is_doing_until_the_server_has_moved(admin, cloud):
    server_id = asked(admin, cloud)
    seen = {}
    for name in LIVE_STEPS:
        until(cloud, name)
        seen[name] = [one["status"] for one in listed(admin, server_id)]
    assert seen == {
        "pick": ["accepted"], "check_destination": ["queued"], "check_source": ["queued"], "pre_migrate": ["preparing"],
        "migrate_out": ["preparing"], "finish_migration": ["post-migrating"], "cleanup_source": ["post-migrating"],
    }  # fmt: skip
    cloud.work()
    assert listed(admin, server_id) == []
    [done] = every(admin)
    assert (done["status"], done["migration_type"], done["source_compute"], done["dest_compute"]) == (
        "completed", "live-migration", "host1", "host3",
    )  # fmt: skip


def test_a_running_migration_shows_its_progress_and_is_aborted(admin, cloud):
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        [shown] = listed(admin, server_id)
        path = f"/servers/{server_id}/migrations/{shown['id']}"
        assert admin.get(path, version=LATEST).json()["migration"]["status"] == "running"
        total = shown["memory_total_bytes"]
        assert total == 512 << 20
        assert shown["memory_processed_bytes"] + shown["memory_remaining_bytes"] == total
        assert shown["server_uuid"] == server_id
        assert abort(admin, server_id, shown).status_code == 202
    stayed(cloud, server_id)
    assert [one["status"] for one in every(admin)] == ["cancelled"]
    assert cloud.row(server_id).fault is None
    assert stories.last_action(admin, server_id)["action"] == "live_migration_cancel"
    assert admin.get(path, version=LATEST).status_code == 404
    assert act(admin, server_id, LIVE).status_code == 202


def test_a_running_migration_can_be_made_to_end(admin, cloud):
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        [shown] = listed(admin, server_id)
        assert force(admin, server_id, shown).status_code == 202
    cloud.work()
    assert homes(cloud, server_id) == ["host3"]
    assert cloud.row(server_id).host == "host3"
    stories.settled(cloud)


def test_a_delete_ends_a_running_migration(admin, cloud):
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        assert admin.delete(f"/servers/{server_id}").status_code == 204
    cloud.work()
    assert cloud.row(server_id).deleted
    assert homes(cloud, server_id) == []
    stories.settled(cloud)


def test_a_migration_that_takes_too_long_is_ended_and_says_so(admin, cloud):
    server_id = asked(admin, cloud)
    step = until(cloud, "migrate_out")
    with target_cell(cloud.cells["cell1"]):
        Step.objects.filter(pk=step.pk).update(deadline=timezone.now())  # its time was fixed in an earlier life
    stayed(cloud, server_id)
    assert cloud.row(server_id).fault["message"] == "the migration was not over after 1600 s"
    assert [one["status"] for one in every(admin)] == ["failed"]


@pytest.mark.parametrize("host", ["host1", "host3"])
def test_an_abort_works_while_a_host_of_it_drains(host, admin, cloud):
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        two_hosts.drain(cloud, host)
        [shown] = listed(admin, server_id)
        assert abort(admin, server_id, shown).status_code == 202
    stayed(cloud, server_id)


def draining(cloud, host, seconds):
    """The host drains, and its deadline is so near."""
    with target_cell(cloud.cells["cell1"]):
        now = timezone.now()
        deadline = now + timedelta(seconds=seconds)
        Service.objects.filter(host=host).update(draining_since=now, drain_wanted=True, drain_deadline=deadline)


@pytest.mark.parametrize("host", ["host1", "host3"])
def test_a_migration_that_would_outlast_a_drain_is_forced_through(host, admin, cloud, settings):
    settings.DRAIN_LIVE_MIGRATIONS = "force"
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        draining(cloud, host, 10)
    cloud.work()
    assert homes(cloud, server_id) == ["host3"]
    assert "forced through: a drain of its hosts is over in" in details(cloud, server_id)
    stories.settled(cloud)


def test_a_migration_that_would_outlast_a_drain_is_aborted_and_says_why(admin, cloud, settings):
    settings.DRAIN_LIVE_MIGRATIONS = "abort"
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id):
        draining(cloud, "host1", 10)
    stayed(cloud, server_id)
    assert cloud.row(server_id).fault["message"].startswith("a drain of its hosts is over in ")


@pytest.mark.parametrize(("what", "seconds", "deadline"), [("wait", 3, 1), ("abort", 3, 3600), ("abort", 3, None)])
def test_a_migration_goes_on_when_it_is_to_or_when_the_drain_has_time(what, seconds, deadline, admin, cloud, settings):
    settings.DRAIN_LIVE_MIGRATIONS = what
    server_id = asked(admin, cloud)
    with on_its_way(cloud, server_id, seconds):
        if deadline is not None:
            draining(cloud, "host1", deadline)
    cloud.work()
    assert homes(cloud, server_id) == ["host3"]
    assert "forced" not in details(cloud, server_id)
    stories.settled(cloud)


@pytest.mark.parametrize("name", ["pick", "check_destination", "check_source", "pre_migrate", "migrate_out"])
def test_a_migration_that_waits_can_be_aborted_since_2_65(name, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, name)
    [shown] = listed(admin, server_id)
    early = abort(admin, server_id, shown, version="2.64")
    assert (early.status_code, message(early)) == (
        400,
        f"Migration {shown['id']} state of instance {server_id} is {shown['status']}. Cannot abort live migration "
        "while the migration is in this state.",
    )
    assert abort(admin, server_id, shown, version="2.65").status_code == 202
    stayed(cloud, server_id)
    assert [one["status"] for one in every(admin)] == ["cancelled"]


@pytest.mark.parametrize("name", ["pick", "check_destination", "check_source", "pre_migrate", "migrate_out"])
def test_an_abort_during_a_step_ends_it_before_the_guest_moves(name, admin, cloud):
    server_id = asked(admin, cloud)
    step = two_hosts.claim(cloud, until(cloud, name))
    [shown] = listed(admin, server_id)
    assert abort(admin, server_id, shown).status_code == 202
    assert two_hosts.restart(cloud, step) == 1
    stayed(cloud, server_id)


@pytest.mark.parametrize("name", ["finish_migration", "cleanup_source"])
def test_a_guest_that_has_left_is_not_called_back(name, admin, cloud):
    server_id = asked(admin, cloud)
    until(cloud, name)
    [shown] = listed(admin, server_id)
    assert abort(admin, server_id, shown).status_code == (400 if name == "finish_migration" else 409)
    cloud.work()
    assert homes(cloud, server_id) == ["host3"]
    stories.settled(cloud)


def test_what_does_not_go_on_cannot_be_ended(admin, api, cloud):
    server_id = booted(admin, cloud)
    answer = abort(admin, server_id, {"id": 7})
    text = f"Cannot 'abort live migration' instance {server_id} while it is in task_state None"
    assert (answer.status_code, message(answer)) == (409, text)
    assert act(admin, server_id, LIVE).status_code == 202
    [shown] = listed(admin, server_id)
    assert force(admin, server_id, shown).status_code == 400
    assert abort(admin, server_id, {"id": "99999"}).status_code == 404
    assert abort(admin, server_id, {"id": "nonsense"}).status_code == 404
    assert abort(admin, server_id, shown, version="2.23").status_code == 404
    assert force(admin, server_id, shown, version="2.21").status_code == 404
    assert admin.get(f"/servers/{server_id}/migrations", version="2.22").status_code == 404
    assert admin.send("post", f"/servers/{server_id}/migrations/{shown['id']}/action", {"x": 1}).status_code == 400
    cloud.work()
    assert homes(cloud, server_id) == ["host3"]


def test_members_neither_see_nor_end_migrations_and_managers_see_no_hosts(admin, api, cloud):
    cloud.add_host("host3", "cell1")
    server_id = cloud.boot(api)
    while cloud.row(server_id).host != "host1":  # host2 is alone in its cell
        server_id = cloud.boot(api)
    assert act(admin, server_id, LIVE).status_code == 202
    assert api.get(f"/servers/{server_id}/migrations", version=LATEST).status_code == 403
    assert api.get("/os-migrations", version=LATEST).status_code == 403
    manager = client("manager")
    [shown] = listed(manager, server_id)
    assert (shown["source_compute"], shown["status"]) == (None, "accepted")
    assert abort(manager, server_id, shown).status_code == 403
    assert force(manager, server_id, shown).status_code == 403
    assert every(client("manager", project=OTHER_PROJECT)) == []


def test_fields_come_with_their_microversions(admin, cloud):
    asked(admin, cloud)
    [oldest], [old], [new] = every(admin, version="2.22"), every(admin, version="2.58"), every(admin)
    assert "migration_type" not in oldest
    assert "links" not in oldest
    assert "uuid" not in old
    assert "user_id" not in old
    assert set(new) - set(old) == {"uuid", "user_id", "project_id"}
    assert [link["rel"] for link in new["links"]] == ["self", "bookmark"]


def test_migrations_are_found_by_what_they_were_and_shown_in_pages(admin, cloud):
    first = asked(admin, cloud)
    cloud.work()
    act(admin, first, LIVE)
    cloud.work()
    second = asked(admin, cloud)
    newest, back, there = every(admin)
    assert [one["instance_uuid"] for one in (newest, back, there)] == [second, first, first]
    assert every(admin, f"?instance_uuid={second}") == [newest]
    assert every(admin, "?source_compute=host3") == [back]
    assert every(admin, "?status=completed") == [back, there]
    assert every(admin, "?migration_type=resize") == []
    assert every(admin, "?host=host2") == []
    page = admin.get("/os-migrations?limit=1", version=LATEST).json()
    assert page["migrations"] == [newest]
    [more] = page["migrations_links"]
    assert f"marker={newest['uuid']}" in more["href"]
    assert every(admin, f"?limit=2&marker={newest['uuid']}") == [back, there]
    assert admin.get("/os-migrations?marker=nowhere", version=LATEST).status_code == 400
    assert abort(admin, first, there).status_code == 409


# -- what went on, over all cells


def logged(cloud, cell, count, *, key="MigrateLive", seconds=0, **columns):
    """Migrations that ended, one a second up to `seconds` ago; their uuids, the oldest first."""
    now, made = timezone.now(), []
    with target_cell(cloud.cells[cell]):
        for number in range(count):
            when = now - timedelta(seconds=seconds + count - number)
            row = {"server_id": str(uuid4()), "params": {}, "finished_at": when, "started_at": when} | columns
            row["params"] = {"uuid": str(uuid4()), "source": "h1", "destination": "h2"} | row["params"]
            fixed = {"action": "m", "request_id": "r", "user_id": "u1", "project_id": "p1", "updated_at": when}
            made.append(InstanceAction.objects.create(**(fixed | {"key": key} | row)).params["uuid"])
    return made


def walk(api, limit, query=""):
    """All pages, following the links; uuids in the order they came."""
    seen, path = [], f"/os-migrations?limit={limit}{query}"
    while path:
        answer = api.get(path, version=LATEST).json()
        seen.append([one["uuid"] for one in answer["migrations"]])
        more = answer.get("migrations_links")
        path = f"/os-migrations?{more[0]['href'].partition('?')[2]}" if more else ""
    return seen


def test_pages_go_through_all_cells_and_miss_nothing(admin, cloud):
    old, new = logged(cloud, "cell1", 5, seconds=3), logged(cloud, "cell2", 7)
    pages = walk(admin, 4)
    assert [len(page) for page in pages] == [4, 4, 4, 0]
    found = [uuid for page in pages for uuid in page]
    assert sorted(found) == sorted(old + new)
    created = [one["created_at"] for one in every(admin, "?limit=1000")]
    assert created == sorted(created, reverse=True)
    assert [one["uuid"] for one in every(admin, "?limit=1000")] == found
    assert every(admin, "?limit=0") == []


def test_what_was_recorded_in_another_order_than_asked_for_is_in_no_page_twice_and_in_one(admin, cloud):
    """Parallel requests: the row that came first may say a later time."""
    made, now = [], timezone.now()
    for cell, seconds in (("cell1", 10), ("cell2", 9), ("cell2", 11), ("cell1", 8), ("cell2", 7.5), ("cell1", 8.5)):
        made += logged(cloud, cell, 1, started_at=now - timedelta(seconds=seconds))
    for limit in range(1, 7):
        found = [uuid for page in walk(admin, limit) for uuid in page]
        assert set(found) == set(made), limit
        assert len(found) == len(made), limit


def test_before_there_were_pages_all_came_at_once(admin, cloud, settings):
    settings.MAX_LIMIT = 2
    logged(cloud, "cell1", 5)
    assert len(every(admin, version="2.58")) == 5
    assert len(every(admin)) == 2


def test_many_migrations_cost_as_many_queries_as_few(admin, cloud, monkeypatch):
    asked, really = Counter(), CursorWrapper.execute

    def counted(cursor, *args):
        asked[cursor.db.alias] += 1
        return really(cursor, *args)

    monkeypatch.setattr(CursorWrapper, "execute", counted)

    def cost(query):
        asked.clear()
        every(admin, query)
        return dict(asked)

    marker = logged(cloud, "cell1", 3)[-1]
    queries = ("", "?limit=2", f"?limit=2&marker={marker}", "?status=completed&host=h2")
    few = [cost(query) for query in queries]
    for cell in ("cell1", "cell2"):
        logged(cloud, cell, 40, seconds=60)
    assert [cost(query) for query in queries] == few
    assert max(number for alias, number in few[2].items() if alias.startswith("cell:")) <= 6


@pytest.mark.parametrize(("query", "wanted"), [
    ("instance_uuid=s1", {0}), ("source_compute=a", {0, 1}), ("host=b", {0, 1}), ("host=nowhere", set()),
    ("status=completed", {0}), ("status=confirmed", {1}), ("status=done", {2}), ("status=error", {3}),
    ("migration_type=resize", {1}), ("migration_type=evacuation", {2, 3}), ("migration_type=nonsense", set()),
    ("hidden=false", {0, 1, 2, 3}), ("hidden=true", set()), ("user_id=u2", {1}), ("project_id=p2", {1}),
    ("changes-since=2026-01-02T00:00:00", {0}), ("changes-before=2026-01-02T00:00:00", {1, 2, 3}),
    ("status=completed&host=a&limit=1", {0}),
])  # fmt: skip
def test_filters(query, wanted, admin, cloud):
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    made = [
        *logged(cloud, "cell1", 1, server_id="s1", params={"source": "a", "destination": "b"}),
        *logged(cloud, "cell2", 1, key="Resize", params={"source": "a", "destination": "b", "ended": "confirmed"},
                user_id="u2", project_id="p2", updated_at=long_ago),
        *logged(cloud, "cell2", 1, key="Evacuate", updated_at=long_ago),
        *logged(cloud, "cell1", 1, key="Evacuate", message="Error", updated_at=long_ago),
    ]  # fmt: skip
    assert {made.index(one["uuid"]) for one in every(admin, f"?{query}")} == wanted


@pytest.mark.parametrize(("query", "version", "status"), [
    ("nonsense=1", "2.58", 200), ("nonsense=1", "2.59", 400), ("changes-before=2026-01-01", "2.65", 400),
    ("user_id=u1", "2.79", 400), ("changes-since=never", "2.59", 400), ("limit=-1", "2.59", 400),
    ("changes-since=2026-02-01&changes-before=2026-01-01", "2.66", 400),
])  # fmt: skip
def test_parameters_of_a_microversion(query, version, status, admin, cloud):
    assert admin.get(f"/os-migrations?{query}", version=version).status_code == status


def test_a_cell_that_is_down_is_left_out_and_its_markers_are_not_known_now(admin, cloud):
    here, there = logged(cloud, "cell1", 1), logged(cloud, "cell2", 1)
    circuit_breaker.record_failure(cloud.cells["cell2"].id, "cut off")
    assert [one["uuid"] for one in every(admin)] == here
    answer = admin.get(f"/os-migrations?marker={there[0]}", version=LATEST)
    assert answer.status_code == 503
    assert every(admin, f"?marker={here[0]}") == []


def test_a_cold_migration_shows_what_it_is_doing_until_the_users_word(admin, cloud):
    server_id = booted(admin, cloud)
    assert act(admin, server_id, {"migrate": None}).status_code == 202
    seen = {}
    for name in ("check_source", "pick", "pre_migrate", "migrate_out", "finish_migration"):
        until(cloud, name)
        seen[name] = every(admin)[0]["status"]
    assert seen == {
        "check_source": "pre-migrating", "pick": "pre-migrating", "pre_migrate": "pre-migrating",
        "migrate_out": "migrating", "finish_migration": "post-migrating",
    }  # fmt: skip
    cloud.work()
    [shown] = every(admin, "?migration_type=migration")
    assert (shown["status"], shown["source_compute"], shown["dest_compute"]) == ("finished", "host1", "host3")
    assert act(admin, server_id, {"confirmResize": None}).status_code == 204
    cloud.work()
    assert [one["status"] for one in every(admin)] == ["confirmed"]


def test_every_status_is_one_the_admin_page_can_ask_for(admin, cloud):
    server_id = asked(admin, cloud)
    for name in LIVE_STEPS:
        until(cloud, name)
        assert every(admin)[0]["status"] in history.STATUSES
    cloud.work()
    assert every(admin, "?status=completed")[0]["instance_uuid"] == server_id
