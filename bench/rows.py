"""Servers as in a busy cloud: every column filled, JSON of the usual size."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from bench.place import PROJECT
from cells.models import Cell, InstanceMapping
from compute.models import Instance, Service

BORN = datetime(2026, 1, 1, tzinfo=UTC)
FLAVOR = {"vcpus": 2, "ram": 4096, "disk": 40, "ephemeral": 0, "swap": 0, "original_name": "m1.medium",
          "extra_specs": {"hw:cpu_policy": "shared", "quota:disk_read_iops_sec": "500"}}  # fmt: skip
IMAGE = {"disk_format": "qcow2", "size": 700_000_000, "checksum": "d" * 32, "properties": {"os_distro": "debian"}}


def fill(numbers: Iterable[int]) -> None:
    """Write these servers, and the services of their hosts, into the targeted cell."""
    hosts = [f"compute-{number:03}" for number in range(50)]
    Service.objects.bulk_create(
        Service(binary="nova-compute", host=host, last_seen_up=datetime.now(UTC)) for host in hosts
    )
    Instance.objects.bulk_create((_server(number, hosts[number % 50]) for number in numbers), batch_size=500)


def map_servers(cell: Cell) -> list[str]:
    """Create the mappings of the targeted cell's servers; return their ids."""
    servers = list(Instance.objects.values_list("uuid", "created_at"))
    InstanceMapping.objects.bulk_create((InstanceMapping(
        server_id=uuid, cell=cell, project_id=PROJECT, user_id="b" * 32, created_at=born,
    ) for uuid, born in servers), batch_size=500)  # fmt: skip
    return [uuid for uuid, _ in servers]


def _server(number: int, host: str) -> Instance:
    born = BORN + timedelta(seconds=number, microseconds=number)
    address = {"version": 4, "addr": f"10.0.{number // 250 % 250}.{number % 250}", "OS-EXT-IPS:type": "fixed",
               "OS-EXT-IPS-MAC:mac_addr": f"52:54:00:{number % 256:02x}:11:22"}  # fmt: skip
    return Instance(
        uuid=str(UUID(int=(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128, version=4)), project_id=PROJECT,
        user_id="b" * 32, display_name=f"web-{number:05}.example.org", description="behind the load balancer",
        hostname=f"web-{number:05}", host=host, node=host, availability_zone="nova", vm_state="active", power_state=1,
        vcpus=2, memory_mb=4096, disk_gb=40, flavor_id="3", flavor=FLAVOR, image_id=str(UUID(int=number % 7)),
        image=IMAGE, key_name="deploy", metadata={"role": "web", "owner": "team-a", "stage": "production"},
        tags=",web,production,", network="user", addresses={"private": [address]}, reservation_id=f"r-{number:08x}",
        created_at=born, updated_at=born + timedelta(minutes=5), launched_at=born + timedelta(seconds=8),
    )  # fmt: skip
