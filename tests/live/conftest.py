"""Clouds that live as long as the test session: a real one, a simulated one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.cloud import Cloud

SESSION_CLOUDS = ("cloud", "pair_cloud", "fake_cloud")  # the dearest first


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a cloud goes to one worker of `pytest -n 2 --dist loadgroup`, else each would start its own."""
    for item in items:
        known = getattr(item, "_fixtureinfo", None)
        found = known.name2fixturedefs if known is not None else {}
        shared = [name for name in SESSION_CLOUDS if name in found and found[name][-1].scope == "session"]
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.path.stem))


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    """Two cells with a libvirt host each; guests are real."""
    yield from _lifetime(Cloud("libvirt"))


@pytest.fixture(scope="session")
def pair_cloud() -> Iterator[Cloud]:
    """Two cells with two libvirt hosts each: real guests have somewhere to go."""
    yield from _lifetime(Cloud("libvirt", hosts_per_cell=2))


@pytest.fixture(scope="session")
def fake_cloud() -> Iterator[Cloud]:
    """The same with the fake driver: quick, and failures can be ordered."""
    yield from _lifetime(Cloud("fake"))


def _lifetime(cloud: Cloud) -> Iterator[Cloud]:
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.end()
