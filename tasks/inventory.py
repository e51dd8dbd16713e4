"""A host writes down what its hypervisor offers."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from cloud import log
from compute.models import ComputeNode
from compute.virt.base import VirtError
from tasks import worker

logger = log.get(__name__)


def report(me: worker.Worker) -> None:
    """Write the host's ComputeNode. What is claimed of it is not touched. In the targeted cell."""
    if me.driver is None:
        return
    try:
        facts = me.driver.facts()
    except VirtError as error:
        logger.warning("inventory.hypervisor_away", error=repr(error))
        return
    now = timezone.now()
    ComputeNode.objects.update_or_create(
        hypervisor_hostname=facts.hypervisor_hostname,
        defaults={
            "host": me.host,
            "hypervisor_type": facts.hypervisor_type,
            "hypervisor_version": facts.hypervisor_version,
            "host_ip": facts.host_ip,
            "cpu_info": dict(facts.cpu_info),
            "started_at": now - timedelta(seconds=facts.uptime_seconds),
            "vcpus": facts.vcpus,
            "memory_mb": facts.memory_mb,
            "disk_gb": facts.disk_gb,
            "cpu_ratio": settings.CPU_RATIO,
            "ram_ratio": settings.RAM_RATIO,
            "disk_ratio": settings.DISK_RATIO,
            "updated_at": now,
        },
    )
