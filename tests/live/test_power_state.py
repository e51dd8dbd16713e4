"""Real guests change behind our back, and the record follows: by libvirt's events, and by the sync alone.

host1 minds events and looks by the clock once in an hour. host2 minds none, and looks every second.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from deploy.guests.micro import Micro
from deploy.local import libvirtd_conf
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.vigil import Vigil
from tests.live.ward import Ward

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
HOSTS = {"host1": "events", "host2": "sync"}
SETTINGS = {
    "host1": {"STILLWATER_SYNC_POWER_STATE_INTERVAL": "3600"},
    "host2": {"STILLWATER_SYNC_POWER_STATE_INTERVAL": "1", "STILLWATER_HANDLE_LIFECYCLE_EVENTS": "false"},
}
EARLY = ("killed", "paused", "started", "kept", "unwanted")
TRUTH = {"kept": "database", "unwanted": "nova"}
DEADLINE = 60  # generous: what it took is printed


class Day(Ward):
    """What happened to whom, when, and how long it took until that was on record."""

    at: dict[str, float]
    took: dict[str, float]

    def happened(self, name: str, at: float | None = None) -> None:
        """Now, or then."""
        self.at[name] = time.time() if at is None else at

    def tries_to_start(self, name: str) -> None:
        """With virsh, which fails when the guest is stopped again before virsh is sure that it runs."""
        uuid = self.ids[name]
        host = self.cloud.libvirtd(self.show(uuid)["OS-EXT-SRV-ATTR:host"])
        libvirtd_conf.virsh(host, "start", uuid, seconds=30)

    def nobody_did(self, name: str, action: str) -> dict[str, Any]:
        """The newest entry of its history, once it is what nobody asked for; how long that took is noted."""

        def newest() -> dict[str, Any]:
            entry = self.actions(self.ids[name])[-1]
            late = moment(entry["start_time"]) >= self.at[name] - 1  # our two clocks are read one after the other
            mine = (entry["action"], entry["user_id"]) == (action, "") and late
            return entry if mine and all(event["result"] for event in entry["events"]) else {}

        entry = eventually(f"{name}: {action} by nobody", newest, DEADLINE, 0.2)
        took = max(0.0, moment(entry["start_time"]) - self.at[name])
        self.took[f"{name}: {action}"] = took
        return dict(entry)

    def is_on_record(self, name: str, status: str, power_state: int) -> None:
        """As the API shows it."""
        self.wait(self.ids[name], status)
        assert self.show(self.ids[name])["OS-EXT-STS:power_state"] == power_state


def moment(text: str) -> float:
    """Of the API's times, seconds since 1970."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def restarted(cloud: Cloud, **settings: dict[str, str]) -> None:
    """Workers that live with other settings from now on."""
    for host, values in settings.items():
        file = cloud.state.path("env", f"{host}.env")
        kept = [line for line in file.read_text().splitlines() if line.split("=")[0] not in SETTINGS["host2"]]
        file.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in values.items())]) + "\n")
    cloud.manage("host", "restart", *settings, "--parallel", "2", seconds=180)


@pytest.fixture(scope="module")
def day(cloud: Cloud) -> Iterator[Day]:
    """All of it happens at once, on both hosts."""
    with Vigil(cloud) as vigil:
        day = Day(cloud, vigil, "power")
        day.at, day.took = {}, {}
        begin(day)
        try:
            restarted(cloud, **SETTINGS)
            change(day)
            yield day
        finally:
            restarted(cloud, host1={}, host2={})
        print("\nseconds until it was on record:", {name: round(took, 2) for name, took in day.took.items()})  # noqa: T201
        day.empty()
        books.settled(cloud)
        books.check(cloud)


def begin(day: Day) -> None:
    """They run, or are off, and everybody agrees."""
    image = day.made(Micro("stays"))
    for host, way in HOSTS.items():
        for name in EARLY:
            own = {"power_truth": TRUTH[name]} if name in TRUTH else {}
            day.admit(f"{name}-{way}", image, host, metadata=own)
    day.watch(*day.ids)
    off = [day.ids[f"{name}-{way}"] for name in ("started", "unwanted") for way in HOSTS.values()]
    for uuid in off:
        assert day.ask(uuid, {"os-stop": {"shutdown_type": "HARD"}}) == 202
    for uuid in off:
        day.wait(uuid, "SHUTOFF")


def change(day: Day) -> None:
    """One powers itself off, of two the QEMU is killed, one is paused, two are started."""
    leaves = day.made(Micro("leaves", leaves=True, shutdown_delay=5))
    for host, way in HOSTS.items():
        day.admit(f"leaves-{way}", leaves, host)
    day.watch(*(f"leaves-{way}" for way in HOSTS.values()))
    for way in HOSTS.values():
        for name in ("killed", "kept"):
            os.kill(day.vigil[day.ids[f"{name}-{way}"]].pid, signal.SIGKILL)
            day.happened(f"{name}-{way}")
        for name, word in (("paused", "suspend"), ("started", "start")):
            day.happened(f"{name}-{way}")  # by the time virsh is done it may be on record
            day.virsh(f"{name}-{way}", word)
        day.happened(f"unwanted-{way}")
        day.tries_to_start(f"unwanted-{way}")
    for way in HOSTS.values():
        guest = day.vigil[day.ids[f"leaves-{way}"]]
        day.happened(f"leaves-{way}", eventually(f"leaves-{way} is off", lambda guest=guest: guest.gone, 60, 0.05))


@pytest.mark.parametrize("way", HOSTS.values())
def test_a_guest_that_powers_itself_off_from_inside_is_shut_off(day, way):
    entry = day.nobody_did(f"leaves-{way}", "stop")
    assert entry["events"][0]["event"] == "compute_power_sync"
    day.is_on_record(f"leaves-{way}", "SHUTOFF", 4)


@pytest.mark.parametrize("way", HOSTS.values())
def test_a_guest_whose_qemu_is_killed_is_shut_off_and_can_be_started(day, way):
    entry = day.nobody_did(f"killed-{way}", "stop")
    assert "the guest is crashed" in entry["events"][0]["details"]
    day.is_on_record(f"killed-{way}", "SHUTOFF", 6)
    assert day.ask(day.ids[f"killed-{way}"], {"os-start": None}) == 202
    day.is_on_record(f"killed-{way}", "ACTIVE", 1)


@pytest.mark.parametrize("way", HOSTS.values())
def test_a_guest_that_is_paused_with_virsh_is_paused_and_active_when_it_is_resumed(day, way):
    day.nobody_did(f"paused-{way}", "pause")
    day.is_on_record(f"paused-{way}", "PAUSED", 3)
    day.happened(f"paused-{way}")
    day.virsh(f"paused-{way}", "resume")
    day.nobody_did(f"paused-{way}", "start")
    day.is_on_record(f"paused-{way}", "ACTIVE", 1)


@pytest.mark.parametrize("way", HOSTS.values())
def test_a_guest_that_is_started_with_virsh_is_active(day, way):
    day.nobody_did(f"started-{way}", "start")
    day.is_on_record(f"started-{way}", "ACTIVE", 1)


@pytest.mark.parametrize("way", HOSTS.values())
def test_where_the_record_is_right_a_guest_whose_qemu_is_killed_runs_again(day, way):
    entry = day.nobody_did(f"kept-{way}", "start")
    assert "power sync: put back on" in entry["events"][0]["details"]
    day.is_on_record(f"kept-{way}", "ACTIVE", 1)
    host = day.show(day.ids[f"kept-{way}"])["OS-EXT-SRV-ATTR:host"]
    day.vigil.watch(day.ids[f"kept-{way}"], host)  # there is a QEMU


@pytest.mark.parametrize("way", HOSTS.values())
def test_where_it_is_as_in_nova_a_guest_that_is_started_with_virsh_is_stopped_again(day, way):
    day.nobody_did(f"unwanted-{way}", "stop")
    shown = day.show(day.ids[f"unwanted-{way}"])
    off = (4, 6)  # shut down; or crashed, which is what libvirt makes of a start that the stop broke off
    assert (shown["status"], shown["OS-EXT-STS:power_state"] in off) == ("SHUTOFF", True)
