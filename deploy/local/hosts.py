"""The hypervisors: a private libvirtd for each host, and the shutdown of its guests when the cloud stops."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cloud.polling import wait_until
from deploy.local import libvirtd_conf
from deploy.local.libvirtd import LibvirtHost
from deploy.local.output import Failed
from deploy.local.state import StackState, require
from tasks import boot_marker

PRESS_SECONDS = 4  # a booting guest loses the button press, so the button is pressed again
VIRSH_SECONDS = 15
ADVICE = "Run `make up`, which installs it; where it cannot be had: make up DRIVER=fake"


def libvirt_host(state: StackState, host: str) -> LibvirtHost:
    """Return the private libvirtd of a host. Its index keeps the guest ports of several clouds apart."""
    index = state.choices.slot * len(state.hosts) + list(state.hosts).index(host)
    return LibvirtHost(host, state.path("hosts"), index)


def libvirt_hosts(state: StackState) -> list[LibvirtHost]:
    """Return every host's libvirtd; none with the fake driver."""
    if state.choices.driver == "fake":
        return []
    return [libvirt_host(state, host) for host in state.hosts]


def start(state: StackState) -> list[str]:
    """Start the libvirtds that do not run, in parallel, and return the names of their hosts. Raises Failed."""
    down = [host for host in libvirt_hosts(state) if not host.is_running()]
    for program in ("libvirtd", "virsh", "qemu-system-x86_64") if down else ():
        require(program, ADVICE)
    with ThreadPoolExecutor(len(state.hosts)) as pool:
        for host, start_it in [(host, pool.submit(host.start)) for host in down]:
            try:
                start_it.result()
            except (OSError, RuntimeError, TimeoutError, ValueError, subprocess.SubprocessError) as exc:
                log = host.directory / "log/libvirtd.log"
                raise Failed(f"libvirtd of {host.name} did not start: {exc}", log=log, advice=ADVICE) from exc
    return [host.name for host in down]


def guests(host: LibvirtHost) -> list[str]:
    """Return the names of the guests that run on a host now; none when its libvirtd does not answer."""
    return _virsh(host, "list", "--name").split()


def stop_guests(state: StackState, seconds: float, tell: Callable[[str], None]) -> None:
    """Press every guest's power button, wait up to `seconds`, then force off the guests that are left."""
    all_hosts = libvirt_hosts(state)
    running = {host.name: len(host.qemu_pids()) for host in all_hosts if host.qemu_pids()}
    if not running:
        return
    where = ", ".join(f"{count} on {name}" for name, count in running.items())
    tell(f"guests have {seconds:.0f} s to shut down: {where}")
    for name in running:
        boot_marker.expect_boot(state.path("hosts", name, "state"))  # the next `up` starts them again
    deadline = time.monotonic() + seconds
    while any(host.qemu_pids() for host in all_hosts) and time.monotonic() < deadline:
        for host in all_hosts:
            for name in guests(host):
                _virsh(host, "shutdown", name, "--mode", "acpi")
        left = max(0.0, deadline - time.monotonic())
        wait_until(lambda: not any(host.qemu_pids() for host in all_hosts), min(PRESS_SECONDS, left))
    for host in all_hosts:
        if host.qemu_pids():
            tell(f"{host.name}: {len(host.qemu_pids())} still on at the deadline, switched off")
            for name in guests(host):
                _virsh(host, "destroy", name)
            host.destroy_all()  # guests whose libvirtd has ended


def _virsh(host: LibvirtHost, *words: str) -> str:
    """Return what virsh printed. A missing daemon or guest gives an empty text, so that the caller goes on."""
    try:
        done = libvirtd_conf.virsh(host, *words, seconds=VIRSH_SECONDS)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return ""
    return done.stdout if done.returncode == 0 else ""
