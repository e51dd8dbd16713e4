"""The stock client makes images and backups of a server, deletes it so that it can be restored, and for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openstack.exceptions
import pytest

from tests.live import books
from tests.live.cloud import Cloud, eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
BOOT = ("server", "create", "--flavor", "m1.nano", "--image", "micro", "--nic", "none", "--wait")


@pytest.fixture(scope="module")
def keeping() -> Iterator[Cloud]:
    """A cloud of its own: here a deleted server is kept for an hour."""
    cloud = Cloud("fake", STILLWATER_RECLAIM_INSTANCE_INTERVAL="3600")
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.end()


@pytest.fixture(scope="module")
def server(keeping: Cloud) -> str:
    """A server's id."""
    return str(keeping.openstack(*BOOT, "snap-server")["id"])


@pytest.fixture(scope="module")
def looks(keeping: Cloud) -> Any:
    """Looking is quicker than with the client."""
    return keeping.sdk()


def names(looks: Any) -> list[str]:
    return sorted(image.name for image in looks.image.images() if image.name.startswith("snap-"))


def status(looks: Any, server: str) -> str:
    return str(looks.compute.get_server(server).status)


def test_an_image_of_a_server(keeping, looks, server):
    made = keeping.openstack("server", "image", "create", "--wait", "--name", "snap-image", server)
    assert made["status"] == "active"
    assert names(looks) == ["snap-image"]


def test_backups_of_a_server_of_which_the_newest_is_kept(keeping, looks, server):
    backup = ("server", "backup", "create", "--type", "daily", "--rotate", "1", "--wait", server)
    for name in ("snap-monday", "snap-tuesday"):
        keeping.openstack(*backup, "--name", name)
    eventually("the older one goes", lambda: names(looks) == ["snap-image", "snap-tuesday"], 30)
    eventually("the server is free", lambda: status(looks, server) == "ACTIVE", 30)


def test_a_server_is_deleted_restored_and_deleted_for_good(keeping, looks, server):
    keeping.do("server", "delete", server)
    eventually("it is kept", lambda: status(looks, server) == "SOFT_DELETED", 30)
    assert not list(looks.compute.servers())
    keeping.do("server", "restore", server)
    eventually("it is back", lambda: status(looks, server) == "ACTIVE", 30)
    books.settled(keeping)
    books.check(keeping)
    keeping.do("server", "delete", "--force", "--wait", server)
    with pytest.raises(openstack.exceptions.NotFoundException):
        status(looks, server)
    books.settled(keeping)
    books.check(keeping)
