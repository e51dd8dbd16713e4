"""Clouds that live as long as the test session: a real one, a simulated one."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deploy.local import ironic as ironics
from tests.live.cloud import Cloud


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell has what it starts with & ignore Ctrl-C, and the commands of these tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    """Two cells with a libvirt host each; guests are real."""
    with Cloud("libvirt") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def pair_cloud() -> Iterator[Cloud]:
    """Two cells with two libvirt hosts each: real guests have somewhere to go."""
    with Cloud("libvirt", hosts_per_cell=2) as cloud:
        yield cloud


@pytest.fixture(scope="session")
def fake_cloud() -> Iterator[Cloud]:
    """The same with the fake driver: quick, and failures can be ordered."""
    with Cloud("fake") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def ironic() -> Iterator[ironics.Ironic]:
    """A real one that tells nobody; a test enrolls its own nodes, and puts its options back when it restarts it."""
    with ironics.server() as ironic:
        yield ironic
