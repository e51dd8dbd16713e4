"""A driver without machines: thousands of guests, with injected delays and failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from compute.virt import image_check
from compute.virt.base import (
    Driver,
    Guest,
    GuestEvent,
    GuestInvalidState,
    HostFacts,
    Image,
    ImageSource,
    ImageUnusable,
    PowerState,
)
from compute.virt.events import EventThread, GuestNotifier
from compute.virt.fake.call_log import CallLog
from compute.virt.fake.effects import Effect, RecordedEffect
from compute.virt.fake.faults import Faults
from compute.virt.fake.images import Images
from compute.virt.fake.migration import Migration
from compute.virt.fake.nodes import Nodes
from compute.virt.fake.power_button import PowerButton
from compute.virt.fake.rescue import Rescue
from compute.virt.fake.shutdown import ALIVE, FakeShutdown
from compute.virt.fake.state import GuestRecord, StateFile
from compute.virt.fake.timer import GuestTimers, StateFilePoller
from compute.virt.guest_locks import GuestLocks

SUPPORTS = frozenset({"pause", "suspend", "snapshot", "live_snapshot", "console_output", "shutdown_signal",
                      "live_migrate", "migrate"})  # fmt: skip
MIB, GIB = 1 << 20, 1 << 30


class FakeDriver(Migration, Rescue, PowerButton, FakeShutdown, Driver):
    """The whole driver contract, at once or with injected delays.

    With a `state` file the guests outlive this process, even a killed one, as real guests do. Faults come from `orders`
    and, for one guest, from the `fake_*` properties of its image.
    """

    def __init__(
        self,
        hostname: str = "fake-host",
        *,
        state: Path | str | None = None,
        faults: Faults | str = "",
        vcpus: int = 64,
        memory_mb: int = 262_144,
        disk_gb: int = 8192,
        host_ip: str = "127.0.0.1",
        nodes: int = 1,
        resource_class: str = "",
    ) -> None:
        self.machines = Nodes(nodes, resource_class)
        self.guests_live_elsewhere = bool(resource_class)
        self.faults = faults if isinstance(faults, Faults) else Faults(faults)
        self._facts = (hostname, vcpus, memory_mb, disk_gb, host_ip)
        self._started = time.monotonic()
        self._state = StateFile(Path(state) if state else None)
        self._images = Images(self._state)
        self._watchers: list[Callable[[GuestEvent], None]] = []
        self._notifier = GuestNotifier()
        self._locks = GuestLocks(Path(state).with_suffix(".locks") if state else None)
        self._event_thread = EventThread("fake-events")
        self._call = CallLog(self._state, self.faults)
        self.calls = self._call.made
        self._timer = GuestTimers(self._state, self._is_down)
        self._poller = StateFilePoller(self._state, self._others_changed)

    def facts(self) -> HostFacts:
        with self._call("facts", ""):
            hostname, vcpus, memory_mb, disk_gb, host_ip = self._facts
            return HostFacts(
                hypervisor_hostname=hostname,
                hypervisor_type="fake",
                hypervisor_version=1_000_000,
                vcpus=vcpus,
                memory_mb=memory_mb,
                disk_gb=disk_gb,
                host_ip=host_ip,
                cpu_info={"arch": "x86_64", "model": "fake", "vendor": "", "features": []},
                uptime_seconds=int(time.monotonic() - self._started),
                supports=SUPPORTS,
            )

    def nodes(self) -> list[HostFacts]:
        return self.machines.of(self.facts())

    def guests(self) -> dict[str, PowerState]:
        with self._call("guests", ""):
            powers = self._state.powers()
            return {uuid: PowerState.NOSTATE if self.is_locked(uuid) else power for uuid, power in powers.items()}

    def power_state(self, uuid: str) -> PowerState:
        with self._call("power_state", uuid):
            return self._power(uuid)

    def spawn(self, guest: Guest, fetch: ImageSource, *, on: bool = True) -> None:
        with self._call("spawn", guest.uuid, guest):
            if self._power(guest.uuid) in ALIVE:
                return
            if self.machines.resource_class:  # bare metal: one guest per node
                self.machines.must_be_free(guest.node, guest.uuid, self._state.placed())
            size = self._images.virtual_size(guest.image, fetch)
            wanted = guest.disk_gb * GIB
            if wanted and wanted < size:
                raise ImageUnusable(f"image {guest.image.id} needs {size} bytes, the disk has {wanted}")
            if on:
                self._boot(guest, Effect.SPAWNED, virtual_size=wanted or size)
            else:
                self._build(guest, wanted or size)

    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        with self._call("destroy", uuid):
            self._forget_moves(uuid)
            self._state.forget(uuid)
            self._notifier.notify(uuid)

    def power_on(self, guest: Guest) -> None:
        with self._call("power_on", guest.uuid, guest):
            power = self._state.get(guest.uuid).power
            if power is PowerState.PAUSED:
                self._change(guest.uuid, PowerState.RUNNING, "resumed", Effect.UNPAUSED)
            elif power is PowerState.SUSPENDED:
                self._change(guest.uuid, PowerState.RUNNING, "resumed", Effect.RESUMED)
            elif power is not PowerState.RUNNING:
                self._boot(guest, Effect.POWERED_ON)

    def reboot_hard(self, guest: Guest, mark: str = "") -> None:
        """In two parts, as a real driver does: off with the mark stored, then on."""
        with self._call("reboot_hard", guest.uuid, guest) as die_if_ordered:
            if mark and self._rebooted(guest.uuid, mark):
                return
            self._is_down(guest.uuid)  # record the guest's own power-off first, if its time has come
            with self._state.alone():
                record = self._state.get(guest.uuid)
                record.power, record.mark, record.rescue = PowerState.SHUTDOWN, mark, ""
                record.off_at, record.presses = None, 0
                self._state.save(record)
            die_if_ordered()
            self._boot(guest, Effect.REBOOTED, mark)

    def rebooted(self, uuid: str, mark: str) -> bool:
        with self._call("rebooted", uuid):
            return self._rebooted(uuid, mark)

    def pause(self, uuid: str) -> None:
        with self._call("pause", uuid):
            if self._in(uuid, *ALIVE).power is PowerState.RUNNING:
                self._change(uuid, PowerState.PAUSED, "paused", Effect.PAUSED)

    def unpause(self, uuid: str) -> None:
        with self._call("unpause", uuid):
            if self._in(uuid, *ALIVE).power is PowerState.PAUSED:
                self._change(uuid, PowerState.RUNNING, "resumed", Effect.UNPAUSED)

    def suspend(self, uuid: str) -> None:
        with self._call("suspend", uuid):
            if self._in(uuid, *ALIVE, PowerState.SUSPENDED).power in ALIVE:
                self._change(uuid, PowerState.SUSPENDED, "saved", Effect.SUSPENDED)

    def resume(self, guest: Guest) -> None:
        with self._call("resume", guest.uuid, guest):
            if self._in(guest.uuid, *ALIVE, PowerState.SUSPENDED).power is not PowerState.RUNNING:
                self._change(guest.uuid, PowerState.RUNNING, "resumed", Effect.RESUMED)

    def console_output(self, uuid: str) -> str:
        with self._call("console_output", uuid):
            return self._state.console(uuid)

    def snapshot(self, uuid: str, target: Path) -> Image:
        with self._call("snapshot", uuid):
            size = self._state.get(uuid).virtual_size
            partial_file = target.with_name(f"{target.name}.part")
            image_check.write_empty_qcow2(partial_file, size)
            partial_file.replace(target)
            self._state.happened(uuid, Effect.SNAPSHOT, mark=target.stem)
            return Image("", "qcow2", size=target.stat().st_size, virtual_size=size)

    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        self._watchers.append(callback)

    def close(self) -> None:
        self._call.end()
        self._timer.close()
        self._poller.close()
        self._event_thread.close()
        self._state.close()

    def effects(self, uuid: str = "") -> list[RecordedEffect]:
        """Return every change made to a guest ("": to any), oldest first; also of guests that are destroyed."""
        return self._state.effects(uuid)

    # What guests and the hypervisor do by themselves, for tests and demonstrations.

    def power_off_from_inside(self, uuid: str) -> None:
        """Power the guest off as if a user in it had run `poweroff`. Raises GuestNotFound."""
        self._state.get(uuid)
        self._change(uuid, PowerState.SHUTDOWN, "shutdown", Effect.OFF_BY_GUEST)

    def crash(self, uuid: str) -> None:
        """Crash the guest as if its QEMU process had died. Raises GuestNotFound."""
        self._state.get(uuid)
        self._change(uuid, PowerState.CRASHED, "crashed", Effect.CRASHED)

    def go_away(self, reason: str = "ordered to be away") -> None:
        """Make every verb raise HypervisorUnavailable from now on."""
        self._call.away = reason

    def come_back(self) -> None:
        """Work again, and report every guest once, as after a lost connection."""
        self._call.away = ""
        for uuid, power in self._state.powers().items():
            self._tell(GuestEvent(uuid, power, "reconnected"))

    def _power(self, uuid: str) -> PowerState:
        record = self._state.find(uuid)
        return record.power if record else PowerState.NOSTATE

    def _in(self, uuid: str, *powers: PowerState) -> GuestRecord:
        record = self._state.get(uuid)
        if record.power not in powers:
            raise GuestInvalidState(f"guest {uuid} is {record.power.name}")
        return record

    def _rebooted(self, uuid: str, mark: str) -> bool:
        record = self._state.find(uuid)
        return record is not None and (record.power, record.mark) == (PowerState.RUNNING, mark)

    def _change(self, uuid: str, power: PowerState, detail: str, effect: Effect) -> None:
        self._is_down(uuid)  # record the guest's own power-off first, if its time has come
        with self._state.alone():
            record = self._state.find(uuid)
            if record is None:  # destroyed by another thread
                return
            record.power, record.off_at, record.presses = power, None, 0
            self._state.save(record)
            self._state.happened(uuid, effect)
        self._notifier.notify(uuid)
        self._tell(GuestEvent(uuid, power, detail))

    def _boot(self, guest: Guest, effect: Effect, mark: str = "", virtual_size: int = 0) -> None:
        self._is_down(guest.uuid)
        with self._state.alone():
            old = self._state.find(guest.uuid)
            record = GuestRecord(
                guest.uuid,
                guest.name,
                PowerState.RUNNING,
                virtual_size or (old.virtual_size if old else MIB),
                boots=1 + (old.boots if old else 0),
                properties=dict(guest.image.properties),
                mark=mark or (old.mark if old else ""),
                rescue=old.rescue if old else "",
                shutdown_preference=guest.shutdown_preference,
                booted_at=time.time(),
                node=guest.node,
            )
            self._state.save(record)
            self._state.save_timer(guest.uuid, None)
            self._state.happened(guest.uuid, effect, mark)
            image = record.rescue or guest.image.id
            said = f"STILLWATER BOOT image={image} boots={record.boots}\nSTILLWATER READY\n"
            self._state.write_console(guest.uuid, said)
        self._tell(GuestEvent(guest.uuid, PowerState.RUNNING, "started"))

    def _build(self, guest: Guest, virtual_size: int) -> None:
        """Create the guest without booting it."""
        with self._state.alone():
            properties, off = dict(guest.image.properties), PowerState.SHUTDOWN
            shutdown_preference, node = guest.shutdown_preference, guest.node
            record = GuestRecord(guest.uuid, guest.name, off, virtual_size, properties=properties, node=node)
            self._state.save(replace(record, shutdown_preference=shutdown_preference))
            self._state.happened(guest.uuid, Effect.BUILT)

    def _others_changed(self, uuid: str) -> None:
        self._notifier.notify(uuid)
        self._timer.wind()

    def _heard(self, event: GuestEvent) -> None:
        self._notifier.notify(event.uuid)
        self._tell(event)

    def _tell(self, event: GuestEvent) -> None:
        for watcher in list(self._watchers):
            self._event_thread.submit(partial(watcher, event))

    def _is_down(self, uuid: str) -> None:
        power = self._state.mark_down(uuid)
        if power is None or power is PowerState.RUNNING:  # another caller was first, or it rebooted itself
            return
        self._notifier.notify(uuid)
        self._tell(GuestEvent(uuid, power, "shutdown" if power is PowerState.SHUTDOWN else "crashed"))
