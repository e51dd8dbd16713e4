"""QEMU's agent in a guest: it is asked to shut its guest down, if it answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu

from compute.virt.base import VirtError
from compute.virt.libvirt.call_timeout import bounded

log = logging.getLogger(__name__)

PROPERTY = "hw_qemu_guest_agent"  # of an image
CHANNEL = "org.qemu.guest_agent.0"
YES = frozenset({"yes", "true", "on", "1"})
ANSWER = 1  # seconds, whole as libvirt has them
OPEN_AND_ANSWER, SENT = 1.5, 0.3


def is_wanted(properties: Mapping[str, str]) -> bool:
    """Whether an image says that there is an agent in it."""
    return str(properties.get(PROPERTY, "")).strip().lower() in YES


def is_there(definition: str) -> bool:
    """Whether something in the guest listens, as the definition of a running guest says."""
    path = f"devices/channel/target[@name='{CHANNEL}']"
    found = ET.fromstring(definition).iterfind(path)  # noqa: S314 - libvirt's own
    return any(target.get("state") == "connected" for target in found)


def shuts_down(open_connection: Callable[[], libvirt.virConnect], uuid: str) -> bool:
    """Whether the guest's agent took the order; said within two seconds, also when it hangs.

    It is greeted first, because it never answers the order. libvirt's own call for this waits a minute for the guest
    to go down, in a thread of its daemon: twenty such guests, and the daemon answers nobody. The connection is an own
    one, because libvirt serves only five calls of one at a time.
    """
    try:
        domain = bounded(OPEN_AND_ANSWER, "agent", lambda: _greeted(open_connection, uuid))
    except VirtError as error:
        log.info("agent.silent uuid=%s error=%s", uuid, error)
        return False
    with suppress(VirtError):  # its answer, or that there is none, comes later
        bounded(SENT, "agent-shutdown", lambda: _order(domain))
    return True


def _greeted(open_connection: Callable[[], libvirt.virConnect], uuid: str) -> libvirt.virDomain:
    domain = open_connection().lookupByUUIDString(uuid)
    domain.agentSetResponseTimeout(ANSWER)
    try:
        _say(domain, "guest-ping")
    finally:
        domain.agentSetResponseTimeout(libvirt.VIR_DOMAIN_AGENT_RESPONSE_TIMEOUT_BLOCK)  # as it was: for all others
    return domain


def _order(domain: libvirt.virDomain) -> None:
    _say(domain, "guest-shutdown", mode="powerdown")


def _say(domain: libvirt.virDomain, what: str, **arguments: str) -> None:
    words = json.dumps({"execute": what, "arguments": arguments})
    libvirt_qemu.qemuAgentCommand(domain, words, ANSWER, 0)
