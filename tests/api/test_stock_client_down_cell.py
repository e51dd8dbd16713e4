"""The stock clients through a cell that is down: they list and show at every microversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cells.models import Cell, HostMapping
from compute.models import Flavor
from tests.api.servers import server
from tests.identity.fixtures import PASSWORD, openstack, people  # noqa: F401

pytestmark = pytest.mark.live


@pytest.fixture
def command(cells: dict[str, Cell], openstack: Callable[..., Any]) -> Callable[..., Any]:  # noqa: F811
    """`command("2.69", "server list")` as the owner of the servers, or as admin."""

    def run(version: str, words: str, **more: Any) -> Any:
        return openstack(words, "--os-compute-api-version", version, **more)

    return run


@pytest.fixture
def lost(cells: dict[str, Cell], people: Any, cut_off: Any) -> tuple[str, str]:  # noqa: F811
    """Servers of demo in two cells that are down, beside one that is not: `here`."""
    project = people.projects["demo"].id
    Flavor.objects.create(flavor_id="1", name="m1.tiny", vcpus=1, memory_mb=512, disk_gb=1)
    server(cells["cell1"], "here", project_id=project)
    ids = tuple(server(cells[name], project_id=project) for name in ("cell0", "cell2"))
    HostMapping.objects.create(host="host2", cell=cells["cell2"])
    for name in ("cell0", "cell2"):
        cut_off(cells[name])
    return ids


@pytest.mark.parametrize("version", ["2.1", "2.69", "2.96"])
def test_the_command_lists_and_shows(command: Callable[..., Any], lost: tuple[str, str], version: str) -> None:
    unknown, hosts = (lost, {"host2": "UNKNOWN"}) if version != "2.1" else ((), {})
    for words, user in (("server list --long", "demo"), ("server list --all-projects", "admin")):
        listed = command(version, words, user=user)
        assert {row["ID"] for row in listed if row["Status"] == "UNKNOWN"} == set(unknown), words
        assert [row["Name"] for row in listed if row["Status"] == "ACTIVE"] == ["here"], words
    shown = command(version, f"server show {lost[1]}", user="demo")
    assert (shown["id"], shown["status"]) == (lost[1], "UNKNOWN")
    assert {row["Host"]: row["Status"] for row in command(version, "compute service list")} == hosts


def test_the_command_is_told_why_and_its_delete_is_taken(command: Callable[..., Any], lost: tuple[str, str]) -> None:
    refused = command("2.96", f"server stop {lost[1]}", user="demo", parse=False, fails=True)
    assert "Cell cell2 does not answer now" in refused
    command("2.96", f"server delete {lost[1]}", user="demo", parse=False)
    assert lost[1] not in {row["ID"] for row in command("2.96", "server list", user="demo")}


@pytest.mark.parametrize("version", ["2.1", "2.69", "2.96"])
def test_the_libraries_list_and_show(live_server: Any, people: Any, lost: tuple[str, str], settings: Any,  # noqa: F811
                                     version: str) -> None:  # fmt: skip
    import openstack as sdk
    from novaclient import client as nova

    settings.PUBLIC_URL = live_server.url
    unknown = set(lost) if version != "2.1" else set()
    with sdk.connect(
        auth_url=f"{live_server.url}/identity/v3", username="demo", password=PASSWORD, project_name="demo",
        user_domain_name="Default", project_domain_id="default", compute_default_microversion=version,
        load_yaml_config=False, load_envvars=False,
    ) as connection:  # fmt: skip
        servers = nova.Client(version, session=connection.session).servers
        for listed in (connection.compute.servers(), servers.list()):
            assert {one.id for one in listed if one.status == "UNKNOWN"} == unknown
        for shown in (connection.compute.get_server(lost[0]), servers.get(lost[0])):
            assert (shown.id, shown.status) == (lost[0], "UNKNOWN")
