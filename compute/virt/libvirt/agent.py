"""The QEMU guest agent: asks a guest to shut down, if its agent answers."""

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

PROPERTY = "hw_qemu_guest_agent"  # image property
CHANNEL = "org.qemu.guest_agent.0"
YES = frozenset({"yes", "true", "on", "1"})
ANSWER = 1  # seconds; libvirt takes whole seconds only
OPEN_AND_ANSWER, SENT = 1.5, 0.3


def is_wanted(properties: Mapping[str, str]) -> bool:
    """Return whether the image properties say that the image has a guest agent."""
    return str(properties.get(PROPERTY, "")).strip().lower() in YES


def is_there(definition: str) -> bool:
    """Return whether a running guest's definition shows an agent connected to its channel."""
    path = f"devices/channel/target[@name='{CHANNEL}']"
    found = ET.fromstring(definition).iterfind(path)  # noqa: S314 - libvirt's own
    return any(target.get("state") == "connected" for target in found)


def shuts_down(open_connection: Callable[[], libvirt.virConnect], uuid: str) -> bool:
    """Return whether the guest's agent took the shutdown command, within two seconds even if the agent hangs.

    The agent is pinged first, because it never answers the shutdown command itself. libvirt's own call for this waits a
    minute for the guest to go off, in a thread of its daemon: twenty such guests block the daemon. The call uses a
    connection of its own, because libvirt serves only five calls of one connection at a time.
    """
    try:
        domain = bounded(OPEN_AND_ANSWER, "agent", lambda: _greeted(open_connection, uuid))
    except VirtError as error:
        log.info("agent.silent uuid=%s error=%s", uuid, error)
        return False
    with suppress(VirtError):  # no answer is expected in this time
        bounded(SENT, "agent-shutdown", lambda: _order(domain))
    return True


def _greeted(open_connection: Callable[[], libvirt.virConnect], uuid: str) -> libvirt.virDomain:
    domain = open_connection().lookupByUUIDString(uuid)
    domain.agentSetResponseTimeout(ANSWER)
    try:
        _say(domain, "guest-ping")
    finally:
        domain.agentSetResponseTimeout(libvirt.VIR_DOMAIN_AGENT_RESPONSE_TIMEOUT_BLOCK)  # for other callers
    return domain


def _order(domain: libvirt.virDomain) -> None:
    _say(domain, "guest-shutdown", mode="powerdown")


def _say(domain: libvirt.virDomain, what: str, **arguments: str) -> None:
    words = json.dumps({"execute": what, "arguments": arguments})
    libvirt_qemu.qemuAgentCommand(domain, words, ANSWER, 0)
