"""Who is right when record and hypervisor disagree: the host's word, a server's, its image's, its flavor's."""

from __future__ import annotations

from itertools import cycle

import pytest

from cloud import env
from compute.power.sync_policy import DECIDED, TABLES, PowerAuthority
from compute.state import VmState
from compute.virt.base import PowerState
from tests.flow import stories
from tests.flow.powers import do, guest, notice, speaks, sync, tasks

HYPERVISOR, DATABASE, NOVA, RECORD_ONLY = PowerAuthority
LEADS = {"stop": "os-stop", "pause": "pause", "suspend": "suspend", "rescue": "rescue"}
# how it was led there, what somebody does to its guest, then by truth: vm_state and the guest's end
STORIES = {
    "off": ((), "off", {
        HYPERVISOR: ("stopped", "SHUTDOWN"), DATABASE: ("active", "RUNNING"),
        NOVA: ("stopped", "SHUTDOWN"), RECORD_ONLY: ("active", "SHUTDOWN"),
    }),
    "crashed": ((), "crash", {
        HYPERVISOR: ("stopped", "CRASHED"), DATABASE: ("active", "RUNNING"),
        NOVA: ("stopped", "CRASHED"), RECORD_ONLY: ("active", "CRASHED"),
    }),
    "paused": ((), "pause", {
        HYPERVISOR: ("paused", "PAUSED"), DATABASE: ("active", "RUNNING"),
        NOVA: ("active", "PAUSED"), RECORD_ONLY: ("active", "PAUSED"),
    }),
    "its memory was saved": ((), "suspend", {
        HYPERVISOR: ("active", "SUSPENDED"), DATABASE: ("active", "RUNNING"),
        NOVA: ("active", "SUSPENDED"), RECORD_ONLY: ("active", "SUSPENDED"),
    }),
    "switched on": (("stop",), "on", {
        HYPERVISOR: ("active", "RUNNING"), DATABASE: ("stopped", "SHUTDOWN"),
        NOVA: ("stopped", "SHUTDOWN"), RECORD_ONLY: ("stopped", "RUNNING"),
    }),
    "unpaused": (("pause",), "unpause", {
        HYPERVISOR: ("active", "RUNNING"), DATABASE: ("paused", "PAUSED"),
        NOVA: ("paused", "RUNNING"), RECORD_ONLY: ("paused", "RUNNING"),
    }),
    "off while it was paused": (("pause",), "off", {
        HYPERVISOR: ("stopped", "SHUTDOWN"), DATABASE: ("stopped", "SHUTDOWN"),
        NOVA: ("stopped", "SHUTDOWN"), RECORD_ONLY: ("paused", "SHUTDOWN"),
    }),
    "its saved memory was used": (("suspend",), "resume", {
        HYPERVISOR: ("active", "RUNNING"), DATABASE: ("suspended", "SUSPENDED"),
        NOVA: ("suspended", "RUNNING"), RECORD_ONLY: ("suspended", "RUNNING"),
    }),
    "its saved memory is lost": (("suspend",), "off", {
        HYPERVISOR: ("stopped", "SHUTDOWN"), DATABASE: ("stopped", "SHUTDOWN"),
        NOVA: ("suspended", "SHUTDOWN"), RECORD_ONLY: ("suspended", "SHUTDOWN"),
    }),
    "off in rescue": (("rescue",), "off", {
        HYPERVISOR: ("rescued", "SHUTDOWN"), DATABASE: ("rescued", "RUNNING"),
        NOVA: ("rescued", "SHUTDOWN"), RECORD_ONLY: ("rescued", "SHUTDOWN"),
    }),
}  # fmt: skip
@pytest.mark.parametrize(("name", "look"), list(zip(STORIES, cycle((notice, sync)), strict=False)), ids=list(STORIES))
def test_the_right_side_wins(name, look, api, cloud):
    """One server for each truth; heard of by an event, or found by the sync."""
    led_by, change, ends = STORIES[name]
    servers = {truth: cloud.boot(api, metadata={"power_truth": truth}) for truth in PowerAuthority}
    for verb in led_by:
        for server_id in servers.values():
            assert stories.act(api, server_id, {LEADS[verb]: None}).status_code in (200, 202)
    cloud.work()
    for server_id in servers.values():
        do(cloud, server_id, change)
    for look_again in (look, sync):  # it stays so
        for server_id in servers.values():
            look_again(cloud, server_id)
        cloud.work()
        for truth, server_id in servers.items():
            vm_state, power_state = ends[truth]
            assert (truth, *stories.states(cloud, server_id)) == (truth, vm_state, None)
            assert cloud.row(server_id).power_state == guest(cloud, server_id) == PowerState[power_state]


def test_what_is_being_built_resized_or_in_error_is_never_touched():
    states = {vm_state for vm_state, _ in DECIDED}
    assert states.isdisjoint({VmState.BUILDING, VmState.RESIZED, VmState.ERROR, VmState.DELETED})


def test_the_words_are_those_of_the_setting():
    assert tuple(str(truth) for truth in PowerAuthority) == env.POWER_AUTHORITIES
    assert set(TABLES) == set(PowerAuthority)


def test_a_guest_that_cannot_be_told_is_nobodys_business():
    assert PowerState.NOSTATE not in {power_state for _, power_state in DECIDED}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"metadata": {"power_truth": "database"}}, "RUNNING"),
        ({"image": {"properties": {"os_power_truth": "database"}}}, "RUNNING"),
        ({"flavor": {"extra_specs": {"stillwater:power_truth": "database"}}}, "RUNNING"),
        (
            {"metadata": {"power_truth": "hypervisor"}, "image": {"properties": {"os_power_truth": "database"}}},
            "SHUTDOWN",
        ),
        (
            {"image": {"properties": {"os_power_truth": "record-only"}},
             "flavor": {"extra_specs": {"stillwater:power_truth": "database"}}}, "SHUTDOWN",
        ),
        ({"image": {"properties": {"os_power_truth": "sometimes"}}}, "SHUTDOWN"),
        ({"image": {}, "flavor": {}}, "SHUTDOWN"),
    ],
    ids=["metadata", "image", "flavor", "metadata first", "image before flavor", "no word", "nobody says"],
)  # fmt: skip
def test_a_server_its_image_and_its_flavor_may_say_otherwise(columns, expected, api, cloud):
    server_id, other = cloud.boot(api), cloud.boot(api)
    speaks(cloud, server_id, **columns)
    for one in (server_id, other):
        do(cloud, one, "off")
        sync(cloud, one)
    cloud.work()
    assert guest(cloud, server_id) == PowerState[expected]
    assert stories.states(cloud, other) == ("stopped", None)


def test_a_user_says_so_in_the_metadata_and_a_wrong_word_is_refused(api, cloud):
    server_id = cloud.boot(api, metadata={"power_truth": "database"})
    do(cloud, server_id, "off")
    notice(cloud, server_id)
    cloud.work()
    stories.true_to_the_guest(cloud, server_id)
    assert stories.states(cloud, server_id) == ("active", None)
    path = f"/servers/{server_id}/metadata"
    for body in ({"metadata": {"power_truth": "sometimes"}}, {"metadata": {"power_truth": ""}}):
        assert api.send("post", path, body).status_code == 400
        assert api.send("put", path, body).status_code == 400
    assert api.send("put", f"{path}/power_truth", {"meta": {"power_truth": "mine"}}).status_code == 400
    assert api.send("put", f"{path}/power_truth", {"meta": {"power_truth": "hypervisor"}}).status_code == 200
    assert api.send("post", "/servers", cloud.body(metadata={"power_truth": "x"})).status_code == 400
    do(cloud, server_id, "off")
    notice(cloud, server_id)
    assert stories.states(cloud, server_id) == ("stopped", None)


@pytest.mark.parametrize(("truth", "states", "end"), [
    ("hypervisor", ("soft-delete", None), PowerState.RUNNING),
    ("database", ("soft-delete", None), PowerState.SHUTDOWN),
    ("nova", ("soft-delete", None), PowerState.RUNNING),
])  # fmt: skip
def test_a_deleted_server_that_somebody_switched_on_stays_deleted(truth, states, end, api, cloud, settings):
    settings.POWER_TRUTH, settings.RECLAIM_INSTANCE_INTERVAL = truth, 3600
    server_id = cloud.boot(api)
    api.delete(f"/servers/{server_id}")
    cloud.work()
    do(cloud, server_id, "on")
    assert sync(cloud, server_id) == 1
    cloud.work()
    assert stories.states(cloud, server_id) == states
    assert guest(cloud, server_id) == end
    assert sync(cloud, server_id) == 0  # said once


def test_a_difference_that_is_only_recorded_is_recorded_once(api, cloud, settings):
    settings.POWER_TRUTH = "record-only"
    server_id = cloud.boot(api)
    do(cloud, server_id, "off")
    assert [sync(cloud, server_id) for _ in range(3)] == [1, 0, 0]
    assert cloud.row(server_id).power_state == PowerState.SHUTDOWN
    assert tasks(cloud, server_id) == ["create"]
    settings.POWER_TRUTH = "hypervisor"  # the host was restarted with another word
    assert sync(cloud, server_id) == 1
    assert stories.states(cloud, server_id) == ("stopped", None)
