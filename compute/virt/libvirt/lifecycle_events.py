"""Translates libvirt's lifecycle events for the watchers of a host."""

from __future__ import annotations

import libvirt

KINDS = {
    libvirt.VIR_DOMAIN_EVENT_STARTED: "started",
    libvirt.VIR_DOMAIN_EVENT_SUSPENDED: "paused",
    libvirt.VIR_DOMAIN_EVENT_RESUMED: "resumed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED: "shutdown",
    libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED: "asleep",
    libvirt.VIR_DOMAIN_EVENT_CRASHED: "crashed",
}
STOPPED = {
    libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED: "destroyed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED: "crashed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED: "crashed",
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SAVED: "saved",
}
# the guest continues on another host: not reported
LEAVES = {
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_MIGRATED),
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_POSTCOPY),
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED),
}


def meaning(event: int, detail: int) -> str:
    """Return the event as one word for logs; "" for an event that is not reported."""
    if (event, detail) in LEAVES:
        return ""
    what = KINDS.get(event, "")
    return STOPPED.get(detail, what) if event == libvirt.VIR_DOMAIN_EVENT_STOPPED else what
