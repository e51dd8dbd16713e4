"""A superuser's browser, and a cloud with a bit of everything in it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from cells.context import target_cell
from cells.models import Cell, HostMapping
from cloud.identity.models import User
from compute.models import InstanceAction, Service, Step
from tests.cells import rows
from tests.cells.conftest import _no_memories, lost  # noqa: F401  fixtures

EVIL = "<script>alert(1)</script>"
HOSTS, PROGRESS = "/admin/cells/hostmapping/", "/admin/cells/instancemapping/in-progress/"
SERVICES = f"{HOSTS}services/"


@pytest.fixture
def browser(cells) -> Client:
    """Logged in as a superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root", "secret"))
    return client


def action(cell: Cell, server_id: str, *, state: str = "running", **columns: object) -> Step:
    """Something going on with a server."""
    now = timezone.now()
    ended = None if state in ("queued", "running") else now
    with target_cell(cell):
        row = InstanceAction.objects.create(
            server_id=server_id, action="reboot", key="reboot", request_id="req-7", user_id="u1",
            project_id="p1", params={"image_ticket": "TOP-SECRET"}, started_at=now, updated_at=now,
            finished_at=ended, message="Error" if state == "failed" else None,
        )  # fmt: skip
        return Step.objects.create(
            **{
                "action": row, "server_id": server_id, "name": "reboot", "event": "compute_reboot",
                "host": "h1", "queue": "requests", "state": state, "queued_at": now, "started_at": now,
                "finished_at": ended,
            } | columns
        )  # fmt: skip


def furnish(cell: Cell, host: str, servers: int = 1) -> list[str]:
    """A host, some servers on it, something going on with each; the ids of the servers."""
    rows.service(cell, host, disabled=True, disabled_reason=EVIL)
    rows.node(cell, host, vcpus_used=127)
    HostMapping.objects.create(host=host, cell=cell)
    made = [rows.server(cell, host=host, display_name=EVIL, key_data="PUBLIC-KEY") for _ in range(servers)]
    for instance in made:
        action(cell, instance.uuid, details=EVIL, host=host)
    return [instance.uuid for instance in made]


def staff(name: str, *permissions: str) -> Client:
    """The browser of somebody who may do this much."""
    user = User.objects.create_user(name, "secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(cells) -> Client:
    """No superuser: may see and change hosts."""
    return staff("ann", "view_hostmapping", "change_hostmapping", "view_instancemapping")


def host(cell: Cell, name: str, **columns: object) -> Service:
    """A host with its place in a cell."""
    HostMapping.objects.create(host=name, cell=cell)
    return rows.service(cell, name, **columns)


def draining(cell: Cell, name: str, **columns: object) -> Service:
    """A host that drains because ann wanted it."""
    now = timezone.now()
    drain = {"drain_wanted": True, "drain_by": "admin:ann", "drain_reason": "new kernel", "drain_asked_at": now}
    return host(cell, name, **(drain | {"draining_since": now} | columns))


def url(cell: Cell, service: Service) -> str:
    """The service's page."""
    return f"{SERVICES}{cell.id}/{service.uuid}/"
