"""Recording what a host's hypervisor offers."""

from __future__ import annotations

from cloud import log
from compute.placement import inventory
from compute.virt.base import VirtError
from tasks import worker

logger = log.get(__name__)


def report(me: worker.Worker) -> None:
    """Record every node the host serves; allocations stay as they are. In the targeted cell."""
    if me.driver is None:
        return
    try:
        reported = me.driver.nodes()
    except VirtError as error:
        logger.warning("inventory.hypervisor_unavailable", error=repr(error))
        return
    inventory.record(me.host, reported)
