"""What stories of lost hosts have in common: one is off, and somebody says so; its servers leave; it comes back."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from cells.context import target_cell
from compute.hosts import fenced
from compute.models import Service
from compute.power import sync
from tests.flow import stories
from tests.flow.stories import act, states
from tests.flow.two_hosts import booted, claimed, homes, needed

OLD = "2.94"  # the last version in which an evacuated server is powered on
WHEN = ("before", "inside", "after the work")


def evacuate(admin, server_id, version=OLD, **more):
    return act(admin, server_id, {"evacuate": more}, version=version)


def force(admin, host, down=True):
    """The operator's word: it is off (or not any more)."""
    (service,) = admin.get(f"/os-services?host={host}", version="2.96").json()["services"]
    return admin.send("put", f"/os-services/{service['id']}", {"forced_down": down}, version="2.96")


def gone_host(admin, cloud, host="host1"):
    """It is off, and somebody says so."""
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=host).update(last_seen_up=timezone.now() - timedelta(seconds=1))
    answer = force(admin, host)
    assert answer.status_code == 200, answer.content


def beats(cloud, host, ago=0.0):
    with target_cell(cloud.cells["cell1"]):
        Service.objects.filter(host=host).update(last_seen_up=timezone.now() - timedelta(seconds=ago))


def back(cloud, host="host1"):
    """It starts again: what a worker does first, in that order; its queued steps are the test's to deliver."""
    beats(cloud, host)
    driver = cloud.hosts[host].driver
    with target_cell(cloud.cells["cell1"]):
        off = fenced.power_off_evacuated(host, driver)
    cloud.hosts[host].restart()
    with target_cell(cloud.cells["cell1"]):
        sync.sync(host, driver, booted=True)
    return off


def work(cloud, *away):
    """Deliver everything, but nothing to hosts that are away."""
    for _ in range(50):
        moved = cloud.schedule()
        for cell, step in cloud.queued():
            moved += step.host not in away and cloud._deliver(cell, step)
        if not moved:
            return
    raise AssertionError(f"work without end: {cloud.queued()}")


def until(cloud, name, *away):
    """Go on until a step waits, and not further; by itself the first host is away."""
    for _ in range(20):
        for cell, step in cloud.queued():
            if step.name == name:
                return step
            if step.host not in (away or ("host1",)):
                cloud._deliver(cell, step)
    raise AssertionError(f"{name} never waited: {cloud.queued()}")


def lost(admin, cloud, *before):
    """A server on host1, which is gone."""
    server_id = booted(admin, cloud)
    stories.lead(admin, cloud, server_id, before)
    gone_host(admin, cloud)
    return server_id


def moved_out(admin, cloud):
    """Evacuated to host3, and its old host not back yet."""
    server_id = lost(admin, cloud)
    assert evacuate(admin, server_id).status_code == 200
    work(cloud, "host1")
    assert (cloud.row(server_id).host, states(cloud, server_id)) == ("host3", ("active", None))
    return server_id


def is_at(cloud, server_id, host, state="active"):
    """One guest, on one host, as the record says, with the room of one server; nothing owed."""
    assert states(cloud, server_id) == (state, None)
    stories.settled(cloud)
    stories.true_to_the_guest(cloud, server_id)
    assert (cloud.row(server_id).host, homes(cloud, server_id), claimed(cloud, server_id)) == (host, [host], {host})
    assert needed(cloud) == set()


def migration(admin, server_id):
    return admin.get(f"/os-migrations?instance_uuid={server_id}", version="2.59").json()["migrations"][0]
