"""Events, requests, syncs, drains, deletes and kills of one server in every order: nothing is lost, or stuck."""

from __future__ import annotations

import pytest

from tests.byhand import Cloud
from tests.flow.switched import Switched, in_the_hand_of

ROUNDS, MOVES = 25, 12


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    """Its machines can be switched, and their hosts are told."""
    for host in cloud.hosts.values():
        host.driver.faults.accept()
    return cloud


@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_in_whatever_order_the_record_is_true(seed, admin, cloud, monkeypatch):
    server_id = cloud.boot(admin)
    for round_ in range(ROUNDS):
        story = Switched(admin, cloud, server_id, seed * 1000 + round_)
        in_the_hand_of(story, monkeypatch)
        story.tell(MOVES)
        story.rest()
        story.check()
        if cloud.row(server_id).deleted:
            server_id = cloud.boot(admin)
