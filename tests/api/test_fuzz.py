"""No request is a 500, whatever is wrong with it. More of them, others: `FUZZ=20000 FUZZ_SEED=7000`, `--timeout 0`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from cells.context import target_cell
from cells.models import HostMapping, InstanceMapping
from cloud.identity.models import Project, User
from cloud.identity.roles import ROLES
from compute.models import Aggregate, ComputeNode, Flavor, Quota, ServerGroup, Service
from tests.api import fuzz
from tests.conftest import PROJECT, Api, client

NUMBER, SEED = int(os.environ.get("FUZZ", "600")), int(os.environ.get("FUZZ_SEED", "1"))
AT_ONCE = 250  # requests between two looks at whether what they are about is still there


@pytest.fixture
def known(cloud: Any) -> Iterator[Any]:
    """Something of every kind that paths name."""
    admin = client("admin", "member", project=PROJECT)
    project = Project.objects.get_or_create(id=PROJECT, defaults={"name": "p"})[0]
    user = User.objects.create_user("someone", "secret")

    def find() -> dict[str, list[str]]:
        Quota.objects.all().delete()
        InstanceMapping.objects.update(queued_for_delete=True)
        server_id = cloud.boot(admin)
        with target_cell(cloud.cells["cell1"]):
            hypervisor = str(ComputeNode.objects.values_list("uuid", flat=True).first())
            service = str(Service.objects.values_list("uuid", flat=True).first())
        Flavor.objects.get_or_create(flavor_id="f", defaults={"name": "f", "vcpus": 1, "memory_mb": 1, "disk_gb": 1})
        aggregate = Aggregate.objects.get_or_create(name="aggregate")[0]
        group = ServerGroup.objects.first() or ServerGroup.objects.create(
            name="g", project_id=PROJECT, user_id="u", policy="affinity"
        )
        return {
            "server_id": [server_id], "image_id": [cloud.image.id], "flavor_id": ["f"], "host": ["host1"],
            "hypervisor_id": [hypervisor], "service_id": [service], "aggregate_id": [str(aggregate.pk)],
            "group_id": [str(group.uuid)], "project_id": [project.pk], "user_id": [str(user.pk)], "tag": ["a"],
            "key": ["a"], "name": ["k"], "label": ["private"], "action_id": ["req-1"], "migration_id": ["1"],
            "role_id": [ROLES["member"].id],
        }  # fmt: skip

    assert HostMapping.objects.exists()
    return find


def test_no_wrong_request_is_a_500(cloud: Any, known: Any) -> None:
    clients = [client("admin", "member", project=PROJECT), client("member", project=PROJECT), client("reader")]
    for one in clients:
        one.raise_request_exception = False
    wrong = []
    for start in range(0, NUMBER, AT_ONCE):
        sent = fuzz.requests(SEED + start, min(AT_ONCE, NUMBER - start), known())
        wrong += [(what, said) for index, what in enumerate(sent) if (said := complaint(clients[index % 3 % 2], what))]
    assert not wrong, "\n".join(f"{what}\n    {said}" for what, said in wrong[:30]) + f"\n{len(wrong)} in all"


def complaint(api: Api, request: fuzz.Wrong) -> str:
    """What is wrong with the answer; "" for a good one."""
    answer = api.generic(request.method, request.path, request.body, content_type=request.kind, version=request.version)
    if answer.status_code in (501, 503) or answer.status_code < 500:
        return ""
    return f"{answer.status_code} {answer.content[:300]!r} {getattr(answer, 'exc_info', '')}"
