"""The driver of bare metal, on a real Ironic: every verb, again, broken off, refused, and while it is away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cloud.polling import wait_until
from compute.virt import load
from compute.virt.base import (
    Driver,
    Guest,
    GuestInvalidState,
    GuestLocked,
    GuestNotFound,
    HypervisorUnavailable,
    Image,
    InsufficientResources,
    NotSupported,
    PowerState,
    VirtError,
)
from compute.virt.ironic.node import InMaintenance
from compute.virt.shutdown_timer import ShutdownTimer
from compute.virt.shutdown_watcher import ShutdownWatcher
from deploy.local.ironic import USER, Ironic
from deploy.local.ports import any_free
from deploy.local.state import ROOT
from tests.live.road import Road

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
HOST, SECONDS = "metal1", 60.0
IMAGE = Image("5d1a3f2e-0000-4000-8000-000000000001", "raw")


@dataclass
class Metal:
    """A host of bare metal, and the Ironic it serves."""

    ironic: Ironic
    folder: Path
    made: list[Driver] = field(default_factory=list)

    @property
    def driver(self) -> Driver:
        """The host's worker of now."""
        return self.made[-1] if self.made else self.restarted()

    def restarted(self) -> Driver:
        """The next life of its worker, with what the last one left."""
        options = {"hostname": HOST, "state_dir": self.folder, "url": self.ironic.url}
        self.made.append(load("ironic", **options, timeout=20.0, deploy_timeout=SECONDS))
        self.made[-1].guests()  # connected
        return self.made[-1]

    def guest(self, node: str) -> Guest:
        """One that is to be on this node."""
        uuid = str(uuid4())
        return Guest(uuid, "instance-00000001", 'a "server" <&>', 4, 8192, 100, IMAGE, node=node)

    def running(self, **machine: object) -> Guest:
        """A server on a machine of its own."""
        (node,) = self.ironic.enroll(driver="machines")
        guest = self.guest(node)
        self.driver.spawn(guest, no_image)
        self.ironic.machine(node, **machine)
        return guest

    def power(self, guest: Guest) -> PowerState:
        return self.driver.power_state(guest.uuid)

    def really(self, guest: Guest) -> dict[str, Any]:
        """What its machine does, whatever anybody believes."""
        return self.ironic.machine(guest.node)


def no_image(_: Path) -> None:
    raise AssertionError("Ironic fetches images itself")


@pytest.fixture
def metal(ironic: Ironic, tmp_path: Path) -> Iterator[Metal]:
    """A host; its nodes are gone afterwards."""
    metal = Metal(ironic, tmp_path)
    yield metal
    for driver in metal.made:
        driver.close()
    ironic.clear()


# -- nodes


def test_every_node_is_shown_with_its_size_and_why_it_takes_no_server(metal: Metal):
    free, broken, theirs, fresh = metal.ironic.enroll(4, driver="machines")
    metal.ironic.maintain(broken, "fan broken")
    stranger = str(uuid4())
    metal.ironic.change(theirs, instance_uuid=stranger)
    metal.ironic.call("PUT", f"/v1/nodes/{fresh}/states/provision", {"target": "manage"})
    metal.ironic.wait(fresh, provision_state="manageable")
    driver, asked = metal.driver, len(metal.ironic.asked())

    nodes = {node.hypervisor_hostname: node for node in driver.nodes()}

    assert len(metal.ironic.asked()) == asked + 1
    assert {id: node.out_of_use for id, node in nodes.items()} == {
        free: "", broken: "maintenance: fan broken", theirs: f"has instance {stranger} of others", fresh: "manageable",
    }  # fmt: skip
    one = nodes[free]
    assert (one.hypervisor_type, one.is_whole, one.resource_class) == ("ironic", True, "baremetal")
    assert (one.vcpus, one.memory_mb, one.disk_gb, one.cpu_info["arch"]) == (4, 8192, 100, "x86_64")
    assert one.hypervisor_version > 1_060_000
    facts = metal.driver.facts()
    assert (facts.hypervisor_hostname, facts.vcpus, facts.memory_mb, facts.disk_gb) == (HOST, 16, 32768, 400)


def test_a_node_whose_size_nobody_knows_offers_nothing(metal: Metal):
    metal.ironic.enroll(properties={"cpus": "8"})
    (node,) = metal.driver.nodes()
    assert (node.vcpus, node.memory_mb, node.disk_gb) == (8, 0, 0)


def test_a_host_has_the_nodes_of_its_conductor_group_alone(metal: Metal, tmp_path: Path):
    metal.ironic.enroll()
    options = {"hostname": HOST, "state_dir": tmp_path, "url": f"{metal.ironic.url}/v1/"}
    metal.made += [load("ironic", conductor_group="rack2", **options), load("ironic", shard="rack2", **options)]
    assert [driver.nodes() for driver in metal.made] == [[], []]


# -- deploying and giving back


def test_a_server_is_deployed_once_on_the_node_that_was_chosen(metal: Metal):
    other, node = metal.ironic.enroll(2, driver="machines")
    guest = metal.guest(node)
    for _ in range(2):
        metal.driver.spawn(guest, no_image)

    found = metal.ironic.node_of(guest.uuid)
    assert (found["uuid"], found["provision_state"], found["power_state"]) == (node, "active", "power on")
    assert found["instance_info"]["image_source"] == IMAGE.id
    assert found["instance_info"]["display_name"] == guest.display_name
    assert metal.really(guest)["deployed"] == 1
    assert metal.driver.guests() == {guest.uuid: PowerState.RUNNING}
    assert {one.out_of_use for one in metal.driver.nodes()} == {""}  # its own server is no obstacle to a rebuild
    assert metal.ironic.node(other)["instance_uuid"] is None


def test_a_server_that_is_to_be_off_is_off(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    guest = metal.guest(node)
    for _ in range(2):
        metal.driver.spawn(guest, no_image, on=False)
    assert (metal.power(guest), metal.really(guest)["power"]) == (PowerState.SHUTDOWN, "power off")


def test_a_worker_killed_while_it_deploys_is_followed_by_one_that_goes_on(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    metal.ironic.machine(node, deploys=2)
    guest = metal.guest(node)
    code = (
        "import sys; from compute.virt import load; from compute.virt.base import Guest, Image\n"
        "url, folder, uuid, node = sys.argv[1:]\n"
        "guest = Guest(uuid, 'a', 'a', 4, 8192, 100, Image(uuid, 'raw'), node=node)\n"
        f"load('ironic', hostname='{HOST}', state_dir=folder, url=url).spawn(guest, None)\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", code, metal.ironic.url, str(metal.folder), guest.uuid, node]
    with subprocess.Popen(words, cwd=ROOT) as worker:
        metal.ironic.wait(node, provision_state="deploying")
        worker.send_signal(signal.SIGKILL)

    metal.driver.spawn(guest, no_image)

    assert (metal.power(guest), metal.really(guest)["deployed"]) == (PowerState.RUNNING, 1)


def test_one_killed_when_it_had_reserved_its_node_goes_on_there(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    guest = metal.guest(node)
    metal.ironic.change(node, instance_uuid=guest.uuid)
    metal.driver.spawn(guest, no_image)
    assert metal.ironic.node(node)["provision_state"] == "active"


def test_a_server_that_is_tried_on_another_node_leaves_the_first_one_first(metal: Metal):
    first, second = metal.ironic.enroll(2, driver="machines")
    guest = metal.guest(second)
    metal.ironic.change(first, instance_uuid=guest.uuid)
    metal.driver.spawn(guest, no_image)
    assert metal.ironic.node_of(guest.uuid)["uuid"] == second
    assert metal.ironic.node(first)["instance_uuid"] is None


def test_of_two_that_want_a_node_one_has_it_and_the_other_may_look_elsewhere(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    guests, drivers = [metal.guest(node), metal.guest(node)], [metal.driver, metal.restarted()]
    with ThreadPoolExecutor(2) as pool:
        tries = [pool.submit(driver.spawn, guest, no_image) for driver, guest in zip(drivers, guests, strict=True)]
    lost = [done.exception() for done in tries if done.exception()]
    assert [type(error) for error in lost] == [InsufficientResources]
    assert metal.really(guests[0])["deployed"] == 1


@pytest.mark.parametrize("trouble", ["of others", "maintenance", "unknown", "not chosen"])
def test_a_node_that_cannot_be_had_is_left_as_it_is(metal: Metal, trouble: str):
    (node,) = metal.ironic.enroll(driver="machines")
    if trouble == "of others":
        metal.ironic.change(node, instance_uuid=str(uuid4()))
    elif trouble == "maintenance":
        metal.ironic.maintain(node)
    before = metal.ironic.node(node)
    guest = metal.guest({"unknown": str(uuid4()), "not chosen": ""}.get(trouble, node))
    with pytest.raises(InsufficientResources):
        metal.driver.spawn(guest, no_image)
    assert metal.ironic.node(node) == before


def test_a_machine_that_cannot_be_deployed_is_given_back_and_says_why(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    metal.ironic.machine(node, deploys=None)
    guest = metal.guest(node)
    with pytest.raises(VirtError, match="the disk is broken"):
        metal.driver.spawn(guest, no_image)
    found = metal.ironic.wait(node, provision_state="available")
    assert (found["instance_uuid"], found["instance_info"]) == (None, {})


@pytest.mark.parametrize("heard", [True, False])
def test_a_request_to_deploy_that_got_no_answer_is_not_asked_for_twice_and_not_forgotten(metal: Metal, heard: bool):
    """Seen in CI: Ironic restarted after it had begun to deploy, before it said so, and the server was in ERROR."""
    (node,) = metal.ironic.enroll(driver="machines")
    guest = metal.guest(node)
    with Road(metal.ironic.url, f"PUT /v1/nodes/{node}/states/provision", heard=heard) as road:
        driver = load("ironic", hostname=HOST, state_dir=metal.folder, url=road.url, deploy_timeout=SECONDS)
        metal.made.append(driver)
        driver.spawn(guest, no_image)
        assert metal.power(guest) is PowerState.RUNNING
        assert metal.really(guest)["deployed"] == 1
        assert road.lost == 1
        road.lost = 0
        driver.destroy(guest.uuid)
    assert road.lost == 1
    assert metal.ironic.wait(node, provision_state="available")["instance_uuid"] is None


def test_two_machines_are_deployed_at_the_same_time(metal: Metal):
    nodes = metal.ironic.enroll(2, driver="machines")
    for node in nodes:
        metal.ironic.machine(node, deploys=1)
    guests = [metal.guest(node) for node in nodes]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda guest: metal.driver.spawn(guest, no_image), guests))
    assert metal.driver.guests() == {guest.uuid: PowerState.RUNNING for guest in guests}


def test_a_server_is_gone_when_its_machine_is_given_back_and_the_next_can_have_it(metal: Metal):
    guest = metal.running()
    for _ in range(2):
        metal.driver.destroy(guest.uuid)
    assert (metal.power(guest), metal.driver.guests()) == (PowerState.NOSTATE, {})
    found = metal.ironic.wait(guest.node, provision_state="available")
    assert (found["instance_uuid"], found["instance_info"]) == (None, {})
    metal.driver.spawn(metal.guest(guest.node), no_image)


def test_a_server_built_anew_waits_until_its_machine_is_clean(metal: Metal):
    guest = metal.running()
    metal.driver.destroy(guest.uuid)
    metal.driver.spawn(guest, no_image)
    assert (metal.power(guest), metal.really(guest)["deployed"]) == (PowerState.RUNNING, 2)


def test_a_node_that_was_only_reserved_is_let_go(metal: Metal):
    (node,) = metal.ironic.enroll(driver="machines")
    guest = metal.guest(node)
    metal.ironic.change(node, instance_uuid=guest.uuid, instance_info={"image_source": "a"})
    metal.driver.destroy(guest.uuid)
    found = metal.ironic.node(node)
    assert (found["provision_state"], found["instance_uuid"], found["instance_info"]) == ("available", None, {})


def test_the_disk_of_a_machine_does_not_stay_without_it(metal: Metal):
    guest = metal.running()
    with pytest.raises(NotSupported):
        metal.driver.destroy(guest.uuid, disk=False)
    assert metal.power(guest) is PowerState.RUNNING


# -- power


def test_the_plug_is_pulled_and_put_back(metal: Metal):
    guest = metal.running()
    for _ in range(2):
        metal.driver.power_off(guest.uuid)
    assert (metal.power(guest), metal.really(guest)["power"]) == (PowerState.SHUTDOWN, "power off")
    for _ in range(2):
        metal.driver.power_on(guest)
    assert (metal.power(guest), metal.really(guest)["power"]) == (PowerState.RUNNING, "power on")
    assert metal.really(guest)["asked"] == 0


def test_the_power_states_of_all_are_one_request(metal: Metal):
    on, off = metal.running(), metal.running()
    metal.driver.power_off(off.uuid)
    asked = len(metal.ironic.asked())
    assert metal.driver.guests() == {on.uuid: PowerState.RUNNING, off.uuid: PowerState.SHUTDOWN}
    assert len(metal.ironic.asked()) == asked + 1


def test_a_machine_that_is_asked_to_goes_off_by_itself(metal: Metal):
    guest = metal.running(obeys=1)
    timer = metal.driver.power_off(guest.uuid, 25, 20)
    assert (timer.how, timer.signals, timer.by) == ("guest", 1, "acpi")
    assert metal.really(guest)["asked"] == 1


def test_a_machine_that_does_not_hear_is_forced_off_at_its_deadline(metal: Metal):
    guest = metal.running(obeys=None)
    timer = metal.driver.power_off(guest.uuid, 6, 3)
    assert (timer.how, timer.cause, metal.power(guest)) == ("forced", "deadline", PowerState.SHUTDOWN)
    assert metal.really(guest)["asked"] >= 1
    metal.driver.power_on(guest)
    assert metal.driver.timer(guest.uuid) is None


def test_whoever_cannot_wait_forces_it_off_while_ironic_waits_for_it(metal: Metal):
    guest = metal.running(obeys=None)
    timer = metal.driver.begin_shutdown(guest.uuid, 60, 10)
    assert timer.signals == 1
    timer = metal.driver.begin_shutdown(guest.uuid, 0, 10)
    assert (timer.how, timer.cause, metal.power(guest)) == ("forced", "cut_short", PowerState.SHUTDOWN)


def test_a_shutdown_outlives_the_worker_that_began_it(metal: Metal):
    guest = metal.running(obeys=None)
    begun = metal.driver.begin_shutdown(guest.uuid, 8, 30)
    metal.driver.close()
    driver = metal.restarted()
    assert {uuid: timer.begun for uuid, timer in driver.timers().items()} == {guest.uuid: begun.begun}
    timer = driver.power_off(guest.uuid, 60, 30)
    assert (timer.begun, timer.how, metal.power(guest)) == (begun.begun, "forced", PowerState.SHUTDOWN)
    assert driver.timers() == {}


def test_one_that_goes_off_is_noticed_long_before_the_next_signal(metal: Metal):
    guest = metal.running(obeys=2)
    ended, over = list[ShutdownTimer](), threading.Event()

    def tell(_: str, timer: ShutdownTimer) -> None:
        if timer.ended:
            ended.append(timer)
            over.set()

    watcher = ShutdownWatcher(metal.driver, tell)
    watcher.start()
    watcher.keep(guest.uuid, metal.driver.begin_shutdown(guest.uuid, 100, 90))
    assert over.wait(SECONDS)
    assert ended[0].how == "guest"
    watcher.close(5)


def test_a_shutdown_that_is_given_up_leaves_it_on(metal: Metal):
    guest = metal.running(obeys=None)
    metal.driver.begin_shutdown(guest.uuid, 60, 10)
    metal.driver.stop_timer(guest.uuid)
    assert metal.driver.turn(guest.uuid).how == "left"
    assert metal.power(guest) is PowerState.RUNNING


def test_waiting_for_a_machine_ends_when_it_is_off(metal: Metal):
    guest = metal.running()
    assert metal.driver.wait_until_off(guest.uuid, 0.1) is False
    metal.driver.signal_shutdown(guest.uuid)
    assert metal.driver.wait_until_off(guest.uuid, SECONDS) is True
    with pytest.raises(GuestInvalidState):
        metal.driver.signal_shutdown(guest.uuid)


def test_a_reboot_asked_again_by_its_mark_happens_once(metal: Metal):
    guest, driver = metal.running(), metal.driver
    driver.reboot_hard(guest, "7")
    asked = metal.ironic.asked()
    metal.restarted().reboot_hard(guest, "7")
    assert not [line for line in metal.ironic.asked()[len(asked) :] if line.startswith("PUT")]
    assert driver.rebooted(guest.uuid, "7")
    driver.power_off(guest.uuid)
    assert not driver.rebooted(guest.uuid, "7")
    driver.reboot_hard(guest, "7")
    assert (driver.rebooted(guest.uuid, "7"), driver.rebooted(guest.uuid, "8")) == (True, False)
    driver.reboot_hard(guest)
    assert (driver.rebooted(guest.uuid, "7"), metal.power(guest)) == (False, PowerState.RUNNING)


def test_rescue_and_back_again(metal: Metal):
    guest = metal.running()
    metal.driver.power_off(guest.uuid)
    for _ in range(2):
        metal.driver.rescue(guest, IMAGE, no_image)
    assert (metal.ironic.node(guest.node)["provision_state"], metal.power(guest)) == ("rescue", PowerState.RUNNING)
    for _ in range(2):
        metal.driver.unrescue(guest)
    assert (metal.ironic.node(guest.node)["provision_state"], metal.power(guest)) == ("active", PowerState.SHUTDOWN)
    metal.driver.rescue(guest, IMAGE, no_image)
    metal.driver.reboot_hard(guest, "9")
    assert (metal.ironic.node(guest.node)["provision_state"], metal.power(guest)) == ("active", PowerState.RUNNING)
    metal.driver.rescue(guest, IMAGE, no_image)
    metal.driver.destroy(guest.uuid)
    assert metal.power(guest) is PowerState.NOSTATE


def test_what_ironic_says_of_a_switch_is_compared_with_what_it_knows_now(metal: Metal):
    guest = metal.running()
    assert metal.driver.power_update_event(guest.uuid, PowerState.SHUTDOWN) is PowerState.RUNNING
    metal.ironic.power(guest.node, "power off")
    assert metal.driver.power_update_event(guest.uuid, PowerState.SHUTDOWN) is PowerState.SHUTDOWN
    assert metal.driver.power_update_event(str(uuid4()), PowerState.RUNNING) is PowerState.RUNNING


def test_a_machine_that_was_switched_a_moment_ago_ends_as_it_was_asked_to(metal: Metal):
    guest = metal.running()
    metal.ironic.machine(guest.node, power="power off")  # Ironic does not know yet
    metal.driver.power_on(guest)
    assert metal.really(guest)["power"] == "power on"
    metal.driver.power_off(guest.uuid)
    metal.ironic.machine(guest.node, power="power on")
    metal.driver.power_off(guest.uuid)
    assert metal.really(guest)["power"] == "power off"


def test_a_power_button_is_noticed_with_ironics_next_look(metal: Metal):
    guest = metal.running()
    metal.ironic.machine(guest.node, power="power off")
    assert wait_until(lambda: metal.power(guest) is PowerState.SHUTDOWN, SECONDS)


# -- locked by Ironic, which switches a machine, or sends its event: the machine is not put back


@contextmanager
def locked(metal: Metal, guest: Guest) -> Iterator[None]:
    """Ironic waits for a guest that does not hear."""
    metal.ironic.call("PUT", f"/v1/nodes/{guest.node}/states/power", {"target": "soft power off", "timeout": 15})
    assert wait_until(lambda: metal.ironic.node(guest.node)["reservation"], SECONDS)
    yield
    metal.ironic.machine(guest.node, power="power off")
    metal.ironic.wait(guest.node, reservation=None, power_state="power off")


def test_a_machine_that_ironic_has_locked_is_in_no_state_yet_and_is_not_put_back(metal: Metal):
    guest, driver = metal.running(obeys=None), metal.driver
    assert not driver.is_locked(guest.uuid)
    with locked(metal, guest):
        assert driver.is_locked(guest.uuid)
        assert driver.guests() == {guest.uuid: PowerState.NOSTATE}
        asked = len(metal.ironic.asked())
        for on in (False, True):
            with pytest.raises(GuestLocked):
                driver.put_back(guest, on=on)
        assert all(line.startswith("GET") for line in metal.ironic.asked()[asked:])
        assert metal.really(guest)["power"] == "power on"
    assert (driver.is_locked(guest.uuid), driver.guests()) == (False, {guest.uuid: PowerState.SHUTDOWN})
    for on in (True, False):
        driver.put_back(guest, on=on)
        assert metal.really(guest)["power"] == ("power on" if on else "power off")


def test_a_machine_that_ironic_locks_right_before_it_is_put_back_is_asked_for_once(
    metal: Metal, monkeypatch: pytest.MonkeyPatch
):
    guest, driver = metal.running(obeys=None), metal.driver
    look, held = driver._here, ExitStack()

    def look_and_then_it_is_locked(uuid: str) -> object:
        node = look(uuid)
        held.enter_context(locked(metal, guest))
        return node

    monkeypatch.setattr(driver, "_here", look_and_then_it_is_locked)
    asked = len(metal.ironic.asked())
    with held:
        with pytest.raises(GuestLocked, match="locked"):
            driver.put_back(guest, on=False)
        puts = [line for line in metal.ironic.asked()[asked:] if "states/power" in line]
        assert [line.rsplit(" ", 1)[1] for line in puts] == ["202", "409"]  # theirs, and ours
        assert metal.really(guest)["power"] == "power on"


def test_a_server_that_has_no_machine_is_not_locked_and_cannot_be_put_back(metal: Metal):
    stranger = metal.guest(str(uuid4()))
    assert not metal.driver.is_locked(stranger.uuid)
    with pytest.raises(GuestNotFound):
        metal.driver.put_back(stranger, on=True)


# -- hands off


def test_a_node_in_maintenance_is_left_alone(metal: Metal):
    guest, driver = metal.running(), metal.driver
    metal.ironic.maintain(guest.node, "fan broken")
    asked = len(metal.ironic.asked())
    verbs: list[Callable[[], object]] = [
        lambda: driver.power_off(guest.uuid), lambda: driver.begin_shutdown(guest.uuid, 60, 10),
        lambda: driver.power_on(guest), lambda: driver.reboot_hard(guest, "1"), lambda: driver.destroy(guest.uuid),
        lambda: driver.signal_shutdown(guest.uuid), lambda: driver.rescue(guest, IMAGE, no_image),
        lambda: driver.spawn(guest, no_image),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(InMaintenance, match="fan broken"):
            verb()
    assert driver.guests() == {guest.uuid: PowerState.NOSTATE}
    assert all(line.startswith("GET") for line in metal.ironic.asked()[asked:])
    metal.ironic.maintained(guest.node)
    assert driver.guests() == {guest.uuid: PowerState.RUNNING}


def test_a_shutdown_is_not_over_because_somebody_took_the_machine_into_maintenance(metal: Metal):
    guest, driver = metal.running(obeys=None), metal.driver
    driver.begin_shutdown(guest.uuid, 6, 6)
    assert wait_until(lambda: metal.ironic.node(guest.node)["reservation"] is None, SECONDS)
    metal.ironic.maintain(guest.node)
    with pytest.raises(InMaintenance):
        driver.turn(guest.uuid)
    assert driver.timer(guest.uuid).runs
    metal.ironic.maintained(guest.node)
    assert driver.power_off(guest.uuid, 1, 1).how == "forced"


def test_a_machine_ironic_cannot_reach_is_in_no_state(metal: Metal):
    guest = metal.running()
    metal.ironic.machine(guest.node, reachable=False)
    assert wait_until(lambda: metal.driver.guests() == {guest.uuid: PowerState.NOSTATE}, SECONDS)
    metal.ironic.machine(guest.node, reachable=True)
    assert wait_until(lambda: metal.driver.guests() == {guest.uuid: PowerState.RUNNING}, SECONDS)


def test_unknown_servers_are_unknown(metal: Metal):
    driver, stranger = metal.driver, metal.guest(str(uuid4()))
    for verb in (
        lambda: driver.power_on(stranger), lambda: driver.reboot_hard(stranger),
        lambda: driver.signal_shutdown(stranger.uuid), lambda: driver.rescue(stranger, IMAGE, no_image),
    ):  # fmt: skip
        with pytest.raises(GuestNotFound):
            verb()
    driver.destroy(stranger.uuid)
    driver.unrescue(stranger)
    assert driver.power_off(stranger.uuid) is None
    assert driver.power_state(stranger.uuid) is PowerState.NOSTATE
    assert driver.wait_until_off(stranger.uuid, 0) is True
    assert driver.how_ended(stranger.uuid) == "gone"


def test_what_no_machine_can_do_is_refused(metal: Metal, tmp_path: Path):
    guest, driver = metal.guest(str(uuid4())), metal.driver
    for verb in (driver.pause, driver.unpause, driver.suspend, driver.console_output):
        with pytest.raises(NotSupported):
            verb(guest.uuid)
    with pytest.raises(NotSupported):
        driver.snapshot(guest.uuid, tmp_path / "x.qcow2")
    with pytest.raises(NotSupported):
        driver.resume(guest)
    with pytest.raises(NotSupported):
        driver.pre_migrate(guest)


def test_machines_stay_on_when_the_one_of_their_worker_goes_down(metal: Metal):
    metal.running()
    assert metal.driver.shutdown_preferences() == {}


def test_an_ironic_that_is_away_may_be_asked_again_later(metal: Metal, tmp_path: Path):
    away = load("ironic", hostname=HOST, state_dir=tmp_path, url=f"http://127.0.0.1:{any_free()}", timeout=5.0)
    metal.made.append(away)
    guest = metal.guest(str(uuid4()))
    for verb in (
        away.nodes, away.guests, lambda: away.power_state(guest.uuid), lambda: away.spawn(guest, no_image),
        lambda: away.power_off(guest.uuid, 5), lambda: away.destroy(guest.uuid),
    ):  # fmt: skip
        with pytest.raises(HypervisorUnavailable):
            verb()
    assert away.power_update_event(guest.uuid, PowerState.SHUTDOWN) is PowerState.SHUTDOWN


def test_an_ironic_may_want_a_password_and_answer_in_pages(
    metal: Metal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    metal.ironic.enroll(3)
    with_password(metal.ironic, "secret", tmp_path, monkeypatch)
    try:
        options = {"hostname": HOST, "state_dir": tmp_path}
        by_url = {**options, "url": metal.ironic.url, "username": USER}
        for way in ({**by_url, "password": "secret"}, {**options, "cloud": "metal"}):
            metal.made.append(load("ironic", **way))
            asked = len(metal.ironic.asked())
            assert len(metal.driver.nodes()) == 3
            pages = [line for line in metal.ironic.asked()[asked:] if line.startswith("GET /v1/nodes?")]
            assert len(pages) == 2
        metal.made.append(load("ironic", **by_url, password="wrong"))
        with pytest.raises(HypervisorUnavailable):
            metal.driver.nodes()
    finally:
        metal.ironic.restart()


def with_password(ironic: Ironic, password: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on Ironic wants one, and clouds.yaml knows it."""
    ironic.restart(password=password, api={"max_limit": 2})
    auth = {"endpoint": ironic.url, "username": USER, "password": password}
    way = {"auth_type": "http_basic", "auth": auth, "baremetal_endpoint_override": ironic.url}
    (folder / "clouds.yaml").write_text(json.dumps({"clouds": {"metal": way}}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(folder / "clouds.yaml"))


def test_an_ironic_that_restarts_while_a_machine_is_deployed_is_waited_for(metal: Metal):
    """What it did not end is given back, and may be tried elsewhere."""
    (node,) = metal.ironic.enroll(driver="machines")
    metal.ironic.machine(node, deploys=30)
    guest = metal.guest(node)
    with ThreadPoolExecutor(1) as pool:
        spawning = pool.submit(metal.driver.spawn, guest, no_image)
        metal.ironic.wait(node, provision_state="deploying")
        metal.ironic.restart()
        with pytest.raises(VirtError, match="was not deployed"):
            spawning.result(SECONDS)
    assert metal.ironic.wait(node, provision_state="available")["instance_uuid"] is None
