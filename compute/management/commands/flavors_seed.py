"""Create five flavors in an empty cloud. Safe to repeat; a flavor that exists is left as it is."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Q

from compute.models import Flavor

# id, name, vCPUs, MiB, GiB. The micro guest runs in 16 MiB, the tiny Linux guest needs 96.
FLAVORS = (
    ("42", "m1.nano", 1, 64, 1),
    ("1", "m1.tiny", 1, 128, 1),
    ("2", "m1.small", 1, 256, 1),
    ("3", "m1.medium", 2, 512, 5),
    ("4", "m1.large", 4, 2048, 20),
)


class Command(BaseCommand):
    """manage.py flavors_seed"""

    help = "Create the flavors m1.nano to m1.large, where their names and ids are free."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the flavors and print what was created."""
        for flavor_id, name, vcpus, memory_mb, disk_gb in FLAVORS:
            if Flavor.objects.filter(Q(flavor_id=flavor_id) | Q(name=name)).exists():
                self.stdout.write(f"{name} exists")
                continue
            Flavor.objects.create(
                flavor_id=flavor_id, name=name, vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb
            )
            self.stdout.write(f"{name} created")
