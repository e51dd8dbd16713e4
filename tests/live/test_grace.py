"""Real guests are asked to shut down, by everything that powers servers off: those that obey, obey late, never obey."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.grace_cases import AT_ONCE, CASES, GUESTS, OBEYS, OWN, RETRY, TIMEOUT, Case
from tests.live.vigil import Guest, Vigil
from tests.live.ward import Ward, forced
from tests.machine import fair

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]
WITHIN = 1.0  # seconds from a deadline
PROMPTLY = 2.0
SECONDS = 3.0  # "off in seconds": a guest of ours needs a tenth of one
QUIET = 8  # seconds until those who obey are gone
LARGER = "1"  # 128 MiB
TOGETHER = ("together-1", "together-2", "together-3")


class Evening(Ward):
    """All are asked at about the same time. `asked`: when each was; `hurried` when cut short by a request."""

    asked: dict[str, float]
    hurried = paused = 0.0
    raced: dict[str, int]


@pytest.fixture(scope="module")
def ward(pair_cloud: Cloud) -> Iterator[Evening]:
    """The tests look at how each of them went."""
    with Vigil(pair_cloud) as vigil:
        ward = Evening(pair_cloud, vigil, "grace")
        ward.asked, ward.raced = {}, {}
        admit(ward)
        for name in sorted(CASES, key=lambda name: "late" not in name):
            if CASES[name].end != AT_ONCE:
                ask(ward, name)
        for name in ("hurried", "paused", "killed"):
            ask(ward, name)
        races(ward)
        time.sleep(max(0.0, max(ward.asked.values()) + QUIET - time.time()))
        interrupts(ward)
        for name in [name for name, case in CASES.items() if case.end == AT_ONCE]:
            ask(ward, name)
            eventually(f"{name} is off", lambda name=name: vigil[ward.ids[name]].gone, 20, 0.05)
        eventually("all are off", vigil.all_gone, 90)
        books.settled(pair_cloud)
        yield ward
        ward.empty()
        books.settled(pair_cloud)
        books.check(pair_cloud)


def admit(ward: Evening) -> None:
    """All of them up; those that are late, last."""
    images: dict[tuple[str, int | None], str] = {}

    def image(guest: str, seconds: int | None = None) -> str:
        if (guest, seconds) not in images:
            properties = {} if seconds is None else {TIMEOUT: str(seconds)}
            made = ward.agents if guest == "agent" else lambda **more: ward.made(GUESTS[guest], **more)
            images[guest, seconds] = made(**properties)
        return images[guest, seconds]

    late = [name for name, case in CASES.items() if case.guest == "late"]
    for name, case in CASES.items():
        if name not in late:
            own = {} if case.own is None else {OWN: str(case.own)}
            flavor = {"flavorRef": LARGER} if case.guest == "agent" else {}
            ward.admit(name, image(case.guest, case.image), metadata=own, **flavor)
    for name in ("hurried", "paused", "killed", "memory", "asleep"):
        ward.admit(name, image("never"))
    for name in TOGETHER:
        ward.admit(name, image("obeys"))
    ward.admit("inside", image("leaves"))
    ward.watch(*ward.ids)
    ward.are_ready(*ward.ids)
    for name in late:
        ward.admit(name, image("late"))
    ward.watch(*late)


def ask(ward: Evening, name: str) -> None:
    """As its case wants it; a stop for those that have none."""
    case, uuid = CASES.get(name, Case("stop", "never", 0)), ward.ids[name]
    ward.asked[name] = time.time()
    if case.operation == "delete":
        words = "&".join(f"{word}={value}" for word, value in case.asks.items())
        assert ward.call("DELETE", f"/servers/{uuid}?{words}").status_code == 204
    else:
        image = next(iter(ward._images.values()))
        answer = ward.call("POST", f"/servers/{uuid}/action", case.body(image))
        assert answer.status_code in (200, 202), f"{name}: {answer.text}"


def races(ward: Evening) -> None:
    """Somebody inside presses the button, a moment before or just when the stop comes."""
    ward.virsh("inside", "shutdown")
    time.sleep(1)
    ask(ward, "inside")
    for name in TOGETHER:
        ward.virsh(name, "shutdown")
        ward.raced[name] = ward.ask(ward.ids[name], {"os-stop": None})


def interrupts(ward: Evening) -> None:
    """In the middle of a grace: one is ended now, one is paused, of one the QEMU ends."""
    ward.hurried = time.time()
    assert ward.ask(ward.ids["hurried"], {"os-stop": {"shutdown_type": "hard"}}) == 202
    eventually("hurried is off", lambda: guest(ward, "hurried").gone, 20, 0.05)
    ward.paused = time.time()
    ward.virsh("paused", "suspend")
    eventually("paused is off", lambda: guest(ward, "paused").gone, 20, 0.05)
    os.kill(guest(ward, "killed").pid, signal.SIGKILL)
    for name in ("memory", "asleep"):
        assert ward.ask(ward.ids[name], {"pause": None}) == 202
        ward.wait(ward.ids[name], "PAUSED")
    assert ward.ask(ward.ids["memory"], {"shelve": None}) == 202
    ward.asked["asleep"] = time.time()
    assert ward.call("DELETE", f"/servers/{ward.ids['asleep']}?shutdown_type=SOFT").status_code == 204
    eventually("they are off", lambda: all(guest(ward, name).gone for name in ("memory", "asleep")), 20, 0.05)


def guest(ward: Evening, name: str) -> Guest:
    """As it was seen from outside."""
    return ward.vigil[ward.ids[name]]


def words(ward: Evening, name: str) -> str:
    """As the action log has it."""
    return ward.words(ward.ids[name])


def names(*ends: str | type) -> list[str]:
    """Cases by how they are to end."""
    return [name for name, case in CASES.items() if case.end in ends or type(case.end) in ends]


@pytest.mark.parametrize("name", [name for name in names(OBEYS) if "late" not in name])
def test_a_guest_that_obeys_is_off_in_seconds(ward, name):
    assert guest(ward, name).gone - ward.asked[name] < fair(SECONDS) + QUIET  # they were all asked at once
    said = re.fullmatch(r"guest shut down in ([\d.]+) s, 1 signal \((\w+)\).*", words(ward, name))
    assert said, words(ward, name)
    assert float(said[1]) < fair(SECONDS)
    assert said[2] == CASES[name].how
    assert len(guest(ward, name).pressed) == (said[2] == "acpi")


@pytest.mark.parametrize("name", [name for name in names(OBEYS) if "late" in name])
def test_a_guest_that_was_not_ready_obeys_a_later_signal(ward, name):
    """Tempest waited 25 minutes for this one."""
    seen = guest(ward, name)
    said = re.fullmatch(r"guest shut down in ([\d.]+) s, ([234]) signals \(acpi\)", words(ward, name))
    assert said, words(ward, name)
    assert seen.pressed[0] - seen.ready < RETRY + fair(WITHIN)
    assert abs(float(said[1]) - RETRY * (int(said[2]) - 1)) < fair(PROMPTLY), "off with the last signal"


@pytest.mark.parametrize("name", names(int))
def test_a_guest_that_never_obeys_is_forced_off_at_its_deadline(ward, name):
    case, seen = CASES[name], guest(ward, name)
    assert seen.gone - ward.asked[name] > case.end - 0.1, "its deadline was kept, and not shortened"
    assert seen.lasted < case.end + fair(WITHIN)
    assert len(seen.pressed) == case.signals
    seconds, signals = forced(words(ward, name))
    assert -WITHIN <= seconds - case.end <= fair(WITHIN)
    assert signals == case.signals
    assert ("fell back to a hard reboot" in words(ward, name)) == (case.operation == "reboot")


@pytest.mark.parametrize("name", names(AT_ONCE))
def test_a_guest_without_time_is_off_at_once_and_never_signalled(ward, name):
    assert guest(ward, name).gone - ward.asked[name] < fair(PROMPTLY)
    assert guest(ward, name).pressed == []
    if CASES[name].operation != "delete":  # nobody asks what became of a guest that is destroyed
        assert words(ward, name).startswith("forced off at once")


@pytest.mark.parametrize("name", CASES)
def test_what_was_asked_for_is_done_afterwards(ward, name):
    ward.wait(ward.ids[name], CASES[name].status, 5)


def test_hard_ends_a_wait_and_both_who_asked_know(ward):
    assert guest(ward, "hurried").gone - ward.hurried < fair(PROMPTLY)
    assert ward.show(ward.ids["hurried"])["status"] == "SHUTOFF"
    _, first, second = ward.actions(ward.ids["hurried"])
    said = [action["events"][0]["details"] for action in (first, second)]
    assert all("forced off after" in words and "cut short by a request" in words for words in said), said


def test_a_guest_that_is_paused_meanwhile_is_not_waited_for(ward):
    assert guest(ward, "paused").gone - ward.paused < fair(PROMPTLY)
    assert "it was paused" in words(ward, "paused")


def test_a_paused_guest_is_shelved_without_a_wait(ward):
    assert ward.show(ward.ids["memory"])["status"] == "SHELVED_OFFLOADED"
    assert guest(ward, "memory").pressed == []
    assert words(ward, "memory").startswith("; keeps its memory until its disk is safe")


def test_a_paused_guest_is_deleted_without_a_wait(ward):
    assert guest(ward, "asleep").gone - ward.asked["asleep"] < fair(PROMPTLY)
    assert words(ward, "asleep") == "forced off at once: it was paused"


def test_a_server_that_is_off_is_not_stopped_again(ward):
    assert ward.ask(ward.ids["stop-obeys"], {"os-stop": None}) == 409


def test_a_guest_whose_qemu_dies_meanwhile_is_not_waited_for(ward):
    assert words(ward, "killed").startswith("guest crashed after")
    assert len(ward.actions(ward.ids["killed"])) == 2


def test_a_guest_that_shuts_down_from_inside_joins_the_stop(ward):
    assert guest(ward, "inside").lasted == pytest.approx(GUESTS["leaves"].shutdown_delay, abs=fair(WITHIN))
    assert words(ward, "inside").startswith("guest shut down in")
    assert len(ward.actions(ward.ids["inside"])) == 2, "created, and stopped once"


@pytest.mark.parametrize("name", TOGETHER)
def test_a_poweroff_from_inside_and_a_stop_at_the_same_moment_are_one(ward, name):
    assert ward.raced[name] in (202, 409)
    assert ward.show(ward.ids[name])["status"] == "SHUTOFF"
    assert [action["action"] for action in ward.actions(ward.ids[name])] == ["create", "stop"]
