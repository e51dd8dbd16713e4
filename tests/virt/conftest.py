"""Hosts, drivers and guests for the driver tests: the fake one and real QEMU."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from compute.virt import load
from compute.virt.base import Driver, Guest, GuestEvent, Image, PowerState
from deploy.guests.build import build
from deploy.local.libvirtd import LibvirtHost

GUESTS = Path(os.environ.get("STILLWATER_GUESTS", "/var/tmp/stillwater/guests"))
SECONDS = 30.0
READY = "STILLWATER READY"
T = TypeVar("T")


@pytest.fixture(scope="session")
def images() -> Path:
    """The folder with the boot-sector guests."""
    build(GUESTS, micro_only=True)
    return GUESTS


@pytest.fixture(scope="session")
def libvirt_host() -> Iterator[LibvirtHost]:
    """One private libvirtd for the whole run; its ports are its own."""
    with started("virt-tests", index=20 + os.getpid() % 40) as host:
        yield host


@pytest.fixture(scope="session")
def other_libvirt_host() -> Iterator[LibvirtHost]:
    """Another one, for guests that move."""
    with started("other", index=60 + os.getpid() % 40) as host:
        yield host


@contextmanager
def started(name: str, index: int) -> Iterator[LibvirtHost]:
    """A libvirtd in a folder of its own; nothing of it is left."""
    missing = [tool for tool in ("libvirtd", "virsh", "qemu-img") if not shutil.which(tool)]
    assert not missing, f"{missing} not installed; use -m 'not live' without a hypervisor"
    # not tmp_path: a socket's path has to be short
    root = Path(tempfile.mkdtemp(prefix="sw-"))
    host = LibvirtHost(name, root, index=index)
    try:
        yield host.start()
    finally:
        host.destroy_all()
        host.stop()
        shutil.rmtree(root, ignore_errors=True)


@dataclass
class Bench:
    """A driver, what it reported, and the guests made with it."""

    driver: Driver
    folder: Path
    image_file: Path
    host: LibvirtHost | None = None
    events: list[GuestEvent] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    fetches: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_real(self) -> bool:
        return self.host is not None

    def heard(self, event: GuestEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_event(self, uuid: str, power: PowerState, seconds: float = SECONDS) -> GuestEvent:
        """The first event of this guest in this state, come or still to come."""

        def found() -> GuestEvent | None:
            wanted = (e for e in self.events if e.uuid == uuid and e.power_state is power)
            return next(wanted, None)

        with self._changed:
            event = self._changed.wait_for(found, seconds)
        assert event, f"no {power.name} event of {uuid} within {seconds} s; heard {self.events}"
        return event

    def fetch(self, target: Path) -> None:
        self.fetches += 1
        shutil.copyfile(self.image_file, target)

    def use(self, file: Path, disk_format: str = "raw", **changes: str) -> Image:
        """An image record for `file`, which `fetch` will deliver."""
        self.image_file = file
        content = file.read_bytes()
        known = {"size": len(content), "checksum": hashlib.md5(content).hexdigest()}
        return Image(f"image-{uuid.uuid4()}", disk_format, **(known | changes))

    def guest(self, image: Image | None = None, memory_mb: int = 16) -> Guest:
        guest = Guest(
            uuid=str(uuid.uuid4()),
            name=f"instance-{uuid.uuid4().hex[:8]}",
            display_name='a "guest" <&>',
            vcpus=1,
            memory_mb=memory_mb,
            disk_gb=0,
            image=image or self.use(self.image_file),
            project_id="project",
        )
        self.made.append(guest.uuid)
        return guest

    def running(self, image: Image | None = None, times: int = 1) -> Guest:
        """A guest that is up and listens to its power button."""
        guest = self.guest(image)
        self.driver.spawn(guest, self.fetch)
        self.wait_console(guest.uuid, READY, times)
        return guest

    def wait_console(self, uuid: str, line: str, times: int = 1) -> str:
        """Until the serial console has said `line` so often."""
        return wait_until(
            lambda: (said := self.driver.console_output(uuid)).count(line) >= times and said,
            f"{line!r} {times} times on the console",
        )

    def power(self, guest: Guest) -> PowerState:
        return self.driver.power_state(guest.uuid)


def wait_until(condition: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """The first true value of `condition`; a failed test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


@pytest.fixture
def fake_bench(tmp_path: Path, images: Path) -> Iterator[Bench]:
    bench = Bench(load("fake"), tmp_path, images / "micro.img")
    bench.driver.watch(bench.heard)
    yield bench
    bench.driver.close()


@pytest.fixture
def libvirt_bench(tmp_path: Path, images: Path, libvirt_host: LibvirtHost) -> Iterator[Bench]:
    driver = load("libvirt", uri=libvirt_host.uri, state_dir=tmp_path / "state", virt_type="qemu")
    bench = Bench(driver, tmp_path, images / "micro.img", libvirt_host)
    driver.watch(bench.heard)
    yield bench
    for made in bench.made:
        driver.destroy(made)
    driver.close()


@pytest.fixture(params=["fake", pytest.param("libvirt", marks=pytest.mark.live)])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Every test that asks for this runs on both drivers."""
    return request.getfixturevalue(f"{request.param}_bench")


@dataclass
class Pair:
    """Two hosts; guests are made on `a`."""

    a: Bench
    b: Bench

    @property
    def is_real(self) -> bool:
        return self.a.is_real

    def places(self) -> tuple[dict[str, PowerState], dict[str, PowerState]]:
        """Where every guest is."""
        return self.a.driver.guests(), self.b.driver.guests()


@contextmanager
def libvirt_pair(
    folder: Path, image: Path, hosts: tuple[LibvirtHost, LibvirtHost], *, shared: bool = False, **options: Any
) -> Iterator[Pair]:
    """Two drivers. `shared`: they have the folder of their guests in common."""
    benches = []
    for host in hosts:
        host.start()  # a test before may have killed it
        options |= {"guests_dir": folder / "shared"} if shared else {}
        driver = load("libvirt", uri=host.uri, state_dir=folder / host.name, virt_type="qemu", **options)
        benches.append(Bench(driver, folder, image, host))
        driver.watch(benches[-1].heard)
    pair = Pair(*benches)
    try:
        yield pair
    finally:
        for bench in benches:
            for made in pair.a.made:
                bench.driver.destroy(made)
            bench.driver.close()


@pytest.fixture
def fake_pair(tmp_path: Path, images: Path) -> Iterator[Pair]:
    benches = [Bench(load("fake", state=tmp_path / f"{n}.sqlite3"), tmp_path, images / "micro.img") for n in "ab"]
    for bench in benches:
        bench.driver.watch(bench.heard)
    yield Pair(*benches)
    for bench in benches:
        bench.driver.close()


@pytest.fixture
def hosts(libvirt_host: LibvirtHost, other_libvirt_host: LibvirtHost) -> tuple[LibvirtHost, LibvirtHost]:
    """Two private libvirtds."""
    return libvirt_host, other_libvirt_host


@pytest.fixture(params=["fake", *(pytest.param(f"{how} disk", marks=pytest.mark.live) for how in ("copied", "shared"))])
def pair(request: pytest.FixtureRequest, tmp_path: Path, images: Path) -> Iterator[Pair]:
    """Every test that asks for this runs on both drivers, with real disks in either place.

    A real guest of micro-dirty.img takes for ever: it changes its memory faster than it is sent.
    """
    if request.param == "fake":
        yield request.getfixturevalue("fake_pair")
        return
    two = request.getfixturevalue("hosts")
    shared = request.param == "shared disk"
    with libvirt_pair(tmp_path, images / "micro.img", two, shared=shared, migration_bandwidth=1) as found:
        yield found
