"""Power-updates as an Ironic sends them: through the API, in batches, again, and to hosts that drain or are down."""

from __future__ import annotations

from uuid import uuid4

import keystoneauth1.session
import novaclient.client
import pytest
from django.conf import settings as django_settings
from keystoneauth1 import adapter
from keystoneauth1.identity import v3

from cells import circuit_breaker
from cells.context import target_cell
from cloud.identity.models import Project, RoleAssignment, User
from compute.external_events import deferred
from compute.hosts import drain
from compute.models import Service
from tests.byhand import Cloud
from tests.conftest import client
from tests.flow import stories

ON, OFF = "POWER_ON", "POWER_OFF"
OLD_HEADER = {"HTTP_X_OPENSTACK_NOVA_API_VERSION": "2.76"}


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    """Its machines can be switched, and their hosts are told."""
    for host in cloud.hosts.values():
        host.driver.faults.accept()
    return cloud


@pytest.fixture
def ironic(cells):
    """Who it is: a service, in a project of its own."""
    return client("service", project="d" * 32, user="ironic")


def say(ironic, server_id, *tags, request_id=""):
    """As Ironic says it, but for the number; the codes."""
    said = [{"name": "power-update", "server_uuid": server_id, "tag": tag} for tag in tags]
    sent = OLD_HEADER | {"HTTP_X_OPENSTACK_REQUEST_ID": request_id or f"req-{uuid4()}"}
    answer = ironic.send("post", "/compute/os-server-external-events", {"events": said}, version="", **sent)
    return [one["code"] for one in answer.json()["events"]]


def switch(cloud, server_id, tag):
    cloud.host_of(server_id).driver.switch(server_id, on=tag == ON)


def stands(cloud, server_id, vm_state):
    cloud.work()
    assert stories.states(cloud, server_id) == (vm_state, None)
    stories.true_to_the_guest(cloud, server_id)
    stories.settled(cloud)


def shown(api, server_id):
    """(action, message, request id) of its history, the oldest first, without its boot."""
    rows = api.get(f"/servers/{server_id}/os-instance-actions").json()["instanceActions"]
    return [(one["action"], one["message"], one["request_id"]) for one in rows[::-1][1:]]


def test_a_machine_that_is_switched_off_and_on_is_followed_and_its_user_sees_who_said_so(api, ironic, cloud):
    server_id = cloud.boot(api)
    ids = {tag: f"req-{uuid4()}" for tag in (OFF, ON)}
    for tag, vm_state in ((OFF, "stopped"), (ON, "active")):
        switch(cloud, server_id, tag)
        assert say(ironic, server_id, tag, request_id=ids[tag]) == [200]
        stands(cloud, server_id, vm_state)
    assert shown(api, server_id) == [("stop", None, ids[OFF]), ("start", None, ids[ON])]
    shows = api.get(f"/servers/{server_id}/os-instance-actions/{ids[OFF]}").json()["instanceAction"]
    assert (shows["user_id"], shows["project_id"]) == ("ironic", "d" * 32)
    assert [(one["event"], one["result"]) for one in shows["events"]] == [("compute_power_update", "Success")]


def test_of_a_batch_the_last_word_on_a_server_counts(api, ironic, cloud):
    server_id = cloud.boot(api)
    switch(cloud, server_id, OFF)
    assert say(ironic, server_id, OFF, ON, "POWER", OFF) == [200, 200, 400, 200]
    stands(cloud, server_id, "stopped")
    assert [action for action, _, _ in shown(api, server_id)] == ["start", "stop"]


def test_a_power_sync_that_says_everything_under_one_id_is_followed_each_time(api, ironic, cloud):
    server_id, request_id = cloud.boot(api), f"req-{uuid4()}"
    for tag, vm_state in ((OFF, "stopped"), (ON, "active"), (OFF, "stopped"), (ON, "active")):
        switch(cloud, server_id, tag)
        assert say(ironic, server_id, tag, request_id=request_id) == [200]
        assert say(ironic, server_id, tag, request_id=request_id) == [200]  # its answer was lost
        stands(cloud, server_id, vm_state)
    actions = shown(api, server_id)
    assert [action for action, _, _ in actions] == ["stop", "start", "stop", "start"]
    assert len({request_id for _, _, request_id in actions}) == 4


def test_a_cell_that_was_down_follows_the_last_word_when_it_is_back(api, ironic, cloud):
    server_id = cloud.boot(api)
    cell = cloud.cell_of(server_id)
    circuit_breaker.record_failure(cell.id, "cut off")
    switch(cloud, server_id, OFF)
    assert [say(ironic, server_id, tag) for tag in (OFF, ON, OFF)] == [[200], [200], [200]]
    circuit_breaker.record_recovery(cell.id)
    assert deferred.deliver() == 3
    stands(cloud, server_id, "stopped")


def test_a_draining_host_hears_it_and_one_that_was_down_when_it_is_back(api, ironic, cloud):
    server_id = cloud.boot(api)
    host = cloud.host_of(server_id)
    with target_cell(host.cell):
        drain.request(Service.objects.get(binary="nova-compute", host=host.name), by="somebody")
    switch(cloud, server_id, OFF)
    assert say(ironic, server_id, OFF) == [200]
    assert stories.only_step(cloud).queue == "ops"
    begun = host.begin(stories.only_step(cloud).pk)
    assert begun is not None
    host.restart()  # killed in the middle of it
    stands(cloud, server_id, "stopped")


def test_a_machine_nobody_can_switch_from_outside_keeps_its_state_and_the_history_says_why(api, admin, ironic, cloud):
    server_id = cloud.boot(api)
    cloud.host_of(server_id).driver.faults.accept(does=False)
    assert say(ironic, server_id, OFF) == [200]
    stands(cloud, server_id, "active")
    last = stories.last_action(admin, server_id)
    assert (last["action"], last["message"], last["events"][0]["result"]) == ("stop", "Error", "Error")


# -- as Ironic's own library says it


@pytest.fixture
def session(api, cloud):
    """A user `ironic` with the role service, as the docs tell to make it; its password logs in."""
    user = User(name="ironic")
    user.set_password("secret")
    user.save()
    RoleAssignment.objects.create(user=user, project=Project.objects.create(name="service"), role="service")
    url = f"{django_settings.PUBLIC_URL}/identity/v3"
    names = {"user_domain_name": "Default", "project_domain_name": "Default"}
    auth = v3.Password(url, username="ironic", password="secret", project_name="service", **names)
    return keystoneauth1.session.Session(auth)


@pytest.mark.parametrize("where", ["", "/compute", "/compute/v2.1"])
def test_ironics_library_finds_its_way_with_and_without_an_address(where, session, api, cloud):
    server_id = cloud.boot(api)
    switch(cloud, server_id, OFF)
    override = {"endpoint_override": f"{django_settings.PUBLIC_URL}{where}"} if where else {"version": "2.1"}
    nova = adapter.Adapter(session, service_type="compute", **override)
    answer = nova.post(
        "/os-server-external-events", microversion="2.76", global_request_id=f"req-{uuid4()}", raise_exc=False,
        json={"events": [{"name": "power-update", "server_uuid": server_id, "tag": OFF}]},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["events"][0]["code"]) == (200, 200)
    stands(cloud, server_id, "stopped")


def test_novaclient_reads_the_answer(session, api, cloud):
    server_id = cloud.boot(api)
    nova = novaclient.client.Client("2.76", session=session)
    events = [{"name": "power-update", "server_uuid": server_id, "tag": tag} for tag in (ON, "POWER")]
    assert [one["code"] for one in nova.server_external_events.create(events)] == [200, 400]
    stands(cloud, server_id, "active")
