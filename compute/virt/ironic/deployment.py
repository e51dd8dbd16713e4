"""Deployment of servers on machines: reserve, deploy, rescue, give back.

Each may be interrupted anywhere: Ironic's record of the node says what has to be done next.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from contextlib import suppress
from functools import partial

from compute.virt.base import Guest, InsufficientResources, VirtError
from compute.virt.ironic.api import PAUSE, Ironic, NoAnswer, NoNode, Taken
from compute.virt.ironic.node import OURS, Node

BEING_CLEANED = frozenset({"deleting", "cleaning", "clean wait", "clean hold"})  # given back; available soon
FREE = frozenset({"available", "manageable", "enroll"})  # nothing is deployed on it
UNDER_WAY = BEING_CLEANED | frozenset({
    "deploying", "wait call-back", "deploy hold", "rescuing", "rescue wait", "unrescuing", "rebuilding", "adopting",
    "verifying", "inspecting", "inspect wait", "servicing", "service wait", "service hold",
})  # fmt: skip
REASON_SECONDS = 5.0
DEPLOYED = frozenset({"active", "rescue", "rescue failed", "unrescue failed"})


class Deployment:
    """The part of the driver that changes what is deployed on a machine."""

    _ironic: Ironic
    _hostname: str
    _seconds: float  # time limit to deploy, rescue or give back

    def _deployed(self, guest: Guest) -> Node:
        """Return the guest's machine with its image deployed. Deployed already is success.

        Raises InsufficientResources when the node cannot be had. A machine whose deployment fails is given back, and
        VirtError is raised with Ironic's reason.
        """
        until = time.monotonic() + self._seconds
        node = self._ironic.node_of(guest.uuid)
        if node is not None and guest.node not in (node.id, ""):  # an earlier attempt failed to give it back
            self._give_back(guest.uuid)
            node = None
        node = node or self._reserved(guest, until)
        node.must_not_be_maintained()
        if node.state in FREE:
            self._deploy(node, guest, until)
        node = self._after(guest.uuid, until)
        if node.state in DEPLOYED:
            return node
        why = f"node {node.id} was not deployed ({node.state}): {self._reason(guest.uuid, node)}"
        with suppress(VirtError):  # deleting the server tries again
            self._give_back(guest.uuid)
        raise VirtError(why)

    def _reserved(self, guest: Guest, until: float) -> Node:
        """Reserve and return the chosen node, once it is free: a rebuilt server waits until its own node is wiped."""
        if not guest.node:
            raise InsufficientResources(f"no node was chosen for server {guest.uuid}")
        try:
            look = partial(self._ironic.node, guest.node)
            node = self._ironic.until(look, lambda one: one.state not in BEING_CLEANED, until)
            if why := self._unfit(node, guest):
                raise InsufficientResources(f"node {node.id} cannot be had: {why}")
            about = _instance_info(guest, node) | {OURS: self._hostname}
            self._ironic.change(node.id, {"instance_uuid": guest.uuid, "instance_info": about})
            return self._ironic.node(node.id)
        except (NoNode, Taken) as error:
            raise InsufficientResources(f"node {guest.node} cannot be had: {error}") from error

    def _unfit(self, node: Node, guest: Guest) -> str:
        if node.server and node.server != guest.uuid:
            return f"has instance {node.server}"
        return node.out_of_use(self._hostname)

    def _deploy(self, node: Node, guest: Guest, until: float) -> None:
        """Deploy on the node, which this worker or an earlier incarnation has reserved."""
        if why := self._ironic.why_not(node.id):
            self._release(node)
            raise InsufficientResources(f"node {node.id} cannot be deployed: {why}")
        self._ironic.change(node.id, {"instance_info": _instance_info(guest, node) | {OURS: self._hostname}})
        self._provision(guest.uuid, node, "active", until)

    def _give_back(self, server: str) -> None:
        """Undeploy the server's node and remove the reservation. Unknown is success. Does not wait for the cleaning.

        Raises InMaintenance, and VirtError with Ironic's reason when the machine could not be undeployed.
        """
        until, asked = time.monotonic() + self._seconds, False
        while (node := self._ironic.node_of(server)) is not None:
            node.must_not_be_maintained()
            if node.state in FREE:
                self._release(node)
            elif node.state in UNDER_WAY or node.is_busy:
                self._ironic.until(lambda: self._ironic.node_of(server), _is_at_rest, until)
            elif asked:
                raise VirtError(f"node {node.id} could not be given back ({node.state}): {node.error}")
            else:
                self._provision(server, node, "deleted", until)
                asked = True

    def _release(self, node: Node) -> None:
        self._ironic.change(node.id, {"instance_uuid": None, "instance_info": {}})

    def _rescued(self, server: str) -> Node:
        """Put the machine in rescue. In rescue is success. Only Ironic passes the password on; it is not recorded here.
        """
        return self._provisioned(server, "rescue", "rescue", rescue_password=secrets.token_urlsafe(12))

    def _unrescued(self, server: str) -> Node:
        """Let the machine boot its own disk again. Out of rescue is success."""
        return self._provisioned(server, "unrescue", "active")

    def _provisioned(self, server: str, target: str, state: str, **more: str) -> Node:
        until = time.monotonic() + self._seconds
        node = self._after(server, until)
        node.must_not_be_maintained()
        if node.state != state:
            self._provision(server, node, target, until, **more)
            node = self._after(server, until)
        if node.state != state:
            raise VirtError(f"node {node.id} is {node.state} instead of {state}: {node.error}")
        return node

    def _provision(self, server: str, node: Node, target: str, until: float, **more: str) -> None:
        """Make the request once: if no answer arrives, the node's state tells whether Ironic received it.

        Raises OperationTimedOut if Ironic stays away.
        """
        while True:
            try:
                self._ironic.provision(node.id, target, **more)
                return
            except NoAnswer:
                now = self._ironic.until(lambda: self._ironic.node_of(server), _is_at_rest, until)
                if now is None or now.state != node.state:
                    return
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE)

    def _after(self, server: str, until: float) -> Node:
        """Return the server's node once Ironic has finished with it. Raises GuestNotFound, OperationTimedOut."""
        self._ironic.until(lambda: self._ironic.node_of(server), _is_at_rest, until)
        return self._here(server)

    def _reason(self, server: str, node: Node) -> str:
        """Return Ironic's reason of a failure, which it may write a moment after the state; "" if there is none."""
        with suppress(VirtError):
            soon = time.monotonic() + REASON_SECONDS
            node = self._ironic.until(lambda: self._ironic.node_of(server), _says_why, soon) or node
        return node.error

    @abstractmethod
    def _here(self, uuid: str) -> Node:
        """Implemented by the driver."""


def _is_at_rest(node: Node | None) -> bool:
    return node is None or node.is_maintained or (node.state not in UNDER_WAY and not node.is_busy)


def _says_why(node: Node | None) -> bool:
    return node is None or bool(node.error)


def _instance_info(guest: Guest, node: Node) -> dict[str, object]:
    """Return the `instance_info` to deploy: Ironic reads the image by its id from its own image service."""
    return {
        "image_source": guest.image.id,
        "root_gb": str(guest.disk_gb or node.facts("", 0).disk_gb),
        "vcpus": str(guest.vcpus),
        "memory_mb": str(guest.memory_mb),
        "local_gb": str(node.facts("", 0).disk_gb),
        "display_name": guest.display_name,
    }
