"""The Ironic driver: servers that are whole machines. One worker may serve hundreds of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from compute.virt.base import (
    Driver,
    Guest,
    GuestEvent,
    GuestNotFound,
    HostFacts,
    HypervisorUnavailable,
    Image,
    ImageSource,
    NotSupported,
    PowerState,
)
from compute.virt.events import GuestNotifier
from compute.virt.guest_locks import GuestLocks
from compute.virt.ironic.api import Busy, Ironic, Taken
from compute.virt.ironic.deployment import Deployment
from compute.virt.ironic.node import Node
from compute.virt.ironic.shutdown import IronicShutdown, PowerPoller
from compute.virt.ironic.state_files import StateFiles


class IronicDriver(IronicShutdown, Deployment, Driver):
    """Every node of one Ironic, or of one conductor group or shard of it. Connects at the first request.

    A node in maintenance is left alone: its power state is NOSTATE, and verbs raise InMaintenance.
    """

    guests_live_elsewhere = True

    def __init__(
        self,
        hostname: str,
        state_dir: Path | str,
        *,
        url: str = "",
        username: str = "",
        password: str = "",
        cloud: str = "",
        conductor_group: str = "",
        shard: str = "",
        timeout: float = 60.0,
        deploy_timeout: float = 1800.0,
    ) -> None:
        """Take the `url` of an Ironic, with a `username` for HTTP basic authentication, or a `cloud` of clouds.yaml.

        `timeout` is for one request, `deploy_timeout` for a deployment, rescue or undeployment; both in seconds.
        """
        state = Path(state_dir) / "ironic"
        self._hostname, self._seconds = hostname, deploy_timeout
        self._ironic = Ironic(url, username, password, cloud, group=conductor_group, shard=shard, seconds=timeout)
        self._state_files = StateFiles(state)
        self._locks = GuestLocks(state / "locks")
        self._notifier = GuestNotifier()
        self._poller = PowerPoller(self._ironic, self._state_files, self._notifier)

    def facts(self) -> HostFacts:
        """Return the sum of all machines; each machine is in `nodes`."""
        nodes = self.nodes()
        return HostFacts(
            hypervisor_hostname=self._hostname,
            hypervisor_type="ironic",
            hypervisor_version=self._ironic.newest,
            vcpus=sum(node.vcpus for node in nodes),
            memory_mb=sum(node.memory_mb for node in nodes),
            disk_gb=sum(node.disk_gb for node in nodes),
            supports=frozenset({"shutdown_signal"}),
        )

    def nodes(self) -> list[HostFacts]:
        nodes = self._ironic.nodes()
        return [node.facts(self._hostname, self._ironic.newest) for node in nodes]

    def guests(self) -> dict[str, PowerState]:
        """Return every server that Ironic has on a node, also those of other hosts: it does not tell them apart.

        The state is NOSTATE while Ironic holds the node's lock: it is changing the power state, or it has changed it
        and is sending its event.
        """
        listed = self._ironic.servers()
        return {node.server: PowerState.NOSTATE if node.is_busy else node.power_state for node in listed}

    def power_state(self, uuid: str) -> PowerState:
        node = self._ironic.node_of(uuid)
        return PowerState.NOSTATE if node is None else node.power_state

    def spawn(self, guest: Guest, fetch: ImageSource, *, on: bool = True) -> None:
        """Deploy the machine and power it on or off; Ironic fetches the image. Raises InsufficientResources."""
        node = self._deployed(guest)
        if on:
            self._state_files.boots(guest.uuid)
        self._switch(node, on=on)

    def destroy(self, uuid: str, *, disk: bool = True) -> None:
        """Give the machine back to Ironic, which cleans its disk. Raises NotSupported if `disk` is false."""
        if not disk:
            raise NotSupported("the disk of a server on bare metal goes with its machine")
        self._give_back(uuid)
        self._state_files.forget(uuid)
        self._notifier.notify(uuid)

    def power_on(self, guest: Guest) -> None:
        node = self._here(guest.uuid)
        if node.power_state is not PowerState.RUNNING:
            self._state_files.boots(guest.uuid)
        self._switch(node, on=True)

    def reboot_hard(self, guest: Guest, mark: str = "") -> None:
        """Power off, then on: Ironic's own reboot leaves no trace of being half done. Ends a rescue."""
        if mark and self.rebooted(guest.uuid, mark):
            return
        node = self._here(guest.uuid)
        if self._state_files.mark(guest.uuid) != mark or not mark or node.power_state is not PowerState.SHUTDOWN:
            self._switch(node, on=False)
            self._state_files.keep_mark(guest.uuid, mark)
        self._state_files.boots(guest.uuid)
        self._switch(self._unrescued(guest.uuid), on=True)

    def rebooted(self, uuid: str, mark: str) -> bool:
        return bool(mark) and self._state_files.mark(uuid) == mark and self.power_state(uuid) is PowerState.RUNNING

    def rescue(self, guest: Guest, image: Image, fetch: ImageSource) -> None:
        """Put the machine in rescue. Ironic boots its own rescue system, whatever `image` is."""
        self._state_files.boots(guest.uuid)
        self._switch(self._rescued(guest.uuid), on=True)

    def unrescue(self, guest: Guest) -> None:
        node = self._ironic.node_of(guest.uuid)
        if node is not None and node.state not in ("active", "available"):
            self._switch(self._unrescued(guest.uuid), on=False)

    def power_update_event(self, uuid: str, said: PowerState) -> PowerState:
        """Return the power state that Ironic has now: its event may be late. `said` if Ironic does not answer."""
        self._notifier.notify(uuid)
        try:
            node = self._ironic.node_of(uuid)
        except HypervisorUnavailable:
            return said
        known = PowerState.NOSTATE if node is None else replace(node, is_maintained=False).power_state
        return said if known is PowerState.NOSTATE else known

    def is_locked(self, uuid: str) -> bool:
        """Ironic locks a node from before a switch until its `power-update` event is answered (39.0)."""
        node = self._ironic.node_of(uuid)
        return node is not None and node.is_busy

    def put_back(self, guest: Guest, *, on: bool) -> None:
        """Switch with one request: a 409 means that Ironic, or another of its users, is changing the node."""
        node = self._here(guest.uuid)
        if node.is_busy:
            raise Busy(f"Ironic holds the lock of node {node.id}")
        if on and node.power_state is not PowerState.RUNNING:
            self._state_files.boots(guest.uuid)
        try:
            self._switch(node, on=on, patience=0)
        except Taken as error:
            raise Busy(str(error)) from error

    def watch(self, callback: Callable[[GuestEvent], None]) -> None:
        """Does nothing: Ironic sends `power-update` events to the Compute API, and the power sync asks Ironic."""

    def close(self) -> None:
        self._poller.close()
        self._ironic.close()

    def pause(self, uuid: str) -> None:
        raise self._cannot("be paused")

    def unpause(self, uuid: str) -> None:
        raise self._cannot("be paused")

    def suspend(self, uuid: str) -> None:
        raise self._cannot("be suspended")

    def resume(self, guest: Guest) -> None:
        raise self._cannot("be suspended")

    def console_output(self, uuid: str) -> str:
        raise self._cannot("show its console here")

    def snapshot(self, uuid: str, target: Path) -> Image:
        raise self._cannot("be copied while it is a server")

    def _here(self, uuid: str) -> Node:
        node = self._ironic.node_of(uuid)
        if node is None:
            raise GuestNotFound(f"no node has server {uuid}")
        return node

    @staticmethod
    def _cannot(what: str) -> NotSupported:
        return NotSupported(f"a machine of bare metal cannot {what}")
