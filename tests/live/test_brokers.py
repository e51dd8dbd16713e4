"""A message that is lost, late or repeated costs only time: each story on Redis, and again on RabbitMQ."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cells import brokers as wire
from deploy.local.state import CELLS, DOMAINS
from tests.live import books
from tests.live.brokers import Echo, Rabbit, Redises, Thief, queues
from tests.live.burst import Burst
from tests.live.cloud import Cloud, eventually
from tests.machine import fair
from tests.servers import rabbitmq

pytestmark = [pytest.mark.chaos, pytest.mark.independent, pytest.mark.timeout(300)]
DAWDLER = "dawdler"  # an image whose guests take their time


@dataclass
class Site:
    """A cloud, and the brokers it runs on."""

    cloud: Cloud
    brokers: Redises | Rabbit

    def settle(self, *states: str) -> dict[str, str]:
        """Wait until nothing is in progress, and compare the books; how each living server ended."""
        books.settled(self.cloud)
        ends = {row.uuid: row.vm_state for row in books.check(self.cloud)}
        assert set(ends.values()) <= set(states), ends
        return ends

    def effects(self) -> Counter[tuple[str, str]]:
        """How often what was done to which server, as the hypervisors wrote it down."""
        found: Counter[tuple[str, str]] = Counter()
        for host in self.cloud.state.hosts:
            with sqlite3.connect(self.cloud.state.path("hosts", host, "state", "guests.sqlite3")) as database:
                found.update(database.execute("SELECT uuid, verb FROM effects").fetchall())
        return found

    def steps(self) -> list[tuple[int, str, int]]:
        """The journals: every step, how it ended, how often it was begun."""
        found = []
        for cell in CELLS:
            with sqlite3.connect(self.cloud.state.path(f"{cell}.sqlite3"), timeout=30) as database:
                found += database.execute("SELECT id, state, attempts FROM compute_step ORDER BY id").fetchall()
        return found


@pytest.fixture(scope="module")
def on_rabbitmq() -> Iterator[Site]:
    """A simulated cloud whose brokers are RabbitMQ's, which waits three seconds for an acknowledgement."""
    with rabbitmq.server("consumer_timeout = 3000") as server:
        urls = {f"STILLWATER_{domain.upper()}_BROKER_URL": server.url(domain) for domain in DOMAINS}
        cloud = Cloud("fake", **urls)
        try:
            cloud.up()
            assert cloud.state.redis_domains == []
            yield Site(cloud, Rabbit(server))
        finally:
            cloud.end()


@pytest.fixture(params=["redis", "rabbitmq"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Either, with room, and empty before and after."""
    if request.param == "rabbitmq":
        yield from prepared(request.getfixturevalue("on_rabbitmq"))
    else:
        cloud = request.getfixturevalue("fake_cloud")
        yield from prepared(Site(cloud, Redises(cloud)))


@pytest.fixture
def rabbit_site(on_rabbitmq: Site) -> Iterator[Site]:
    """The one on RabbitMQ, for what only that does."""
    yield from prepared(on_rabbitmq)


def prepared(site: Site) -> Iterator[Site]:
    """A quota in nobody's way, an image of slow guests; no server is left."""
    site.cloud.up()
    limits = {"instances": 100, "cores": 200, "ram": 102400}
    admin = site.cloud.sdk(admin=True)
    admin.set_compute_quotas("demo", **limits)
    for row in books.settled(site.cloud):  # stories before this one may have left some
        admin.compute.delete_server(row.uuid)
    assert site.settle() == {}
    if admin.image.find_image(DAWDLER) is None:
        kind = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
        admin.image.create_image(DAWDLER, data=b"\0" * (1 << 20), validate_checksum=False, fake_spawn_delay="6", **kind)
    yield site
    site.cloud.up()
    Burst(site.cloud, "none").delete([row.uuid for row in books.settled(site.cloud)])
    assert site.settle() == {}


@pytest.mark.parametrize("wiped", [False, True], ids=["killed", "wiped"])
def test_a_broker_that_dies_in_a_burst_costs_only_time(site, wiped):
    workers = {name: pid for name, pid in site.cloud.pids().items() if not name.startswith("redis")}
    burst = Burst(site.cloud, "died")
    burst.begin(8)
    site.brokers.kill()
    deleted = burst.delete(burst.so_far()[:1])
    accepted = burst.accepted()
    assert len(accepted) == 8
    if wiped:
        site.brokers.wipe()
    site.brokers.start()

    ends = site.settle("active")
    assert set(ends) == set(accepted) - set(deleted)
    assert {name: site.cloud.pids()[name] for name in workers} == workers, "they reconnect by themselves"
    eventually("a boot by messages, not by the relay", lambda: seconds_of_a_boot(site.cloud) < 4, 40)


def test_a_message_that_comes_again_and_again_has_one_effect(site):
    before, old = site.effects(), set(site.steps())
    with Echo(site.cloud) as echo:
        burst = Burst(site.cloud, "echoed", DAWDLER)
        burst.begin(6)
        ids = burst.accepted()
        site.settle("active")
        for uuid in ids[:4]:
            site.cloud.sdk().compute.stop_server(uuid)
        deleted = burst.delete(ids[4:])
        ends = site.settle("stopped")
    assert echo.sent > 100
    assert (set(ends), set(deleted)) == (set(ids[:4]), set(ids[4:]))
    done = site.effects() - before
    assert {uuid for uuid, _ in done} == set(ids)
    assert Counter(verb for _, verb in done.elements()) == {
        "spawned": 6, "powered off by guest": 4, "powered off by force": 2, "destroyed": 2,
    }  # fmt: skip
    assert set(done.values()) == {1}, done
    assert {(state, attempts) for _, state, attempts in set(site.steps()) - old} == {("done", 1)}


def test_messages_lost_are_sent_again_and_found_again_change_nothing(site):
    with Thief(site.cloud) as thief:
        burst = Burst(site.cloud, "robbed")
        burst.begin(8)
        accepted = burst.accepted()
        eventually("something is stolen", lambda: len(thief.stolen) >= 4, 30)
    assert set(site.settle("active")) == set(accepted)
    effects, steps = site.effects(), site.steps()

    thief.give_back()

    eventually("all is heard", lambda: waiting(site.cloud) == 0, 30)
    site.settle("active")
    assert (site.effects(), site.steps()) == (effects, steps)


def test_a_step_may_take_longer_than_rabbitmq_waits_for_its_acknowledgement(rabbit_site):
    """By default that is half an hour; then it closes the channel, and the worker ended. So none waits so long."""
    before, pids = rabbit_site.effects(), rabbit_site.cloud.pids()
    burst = Burst(rabbit_site.cloud, "long", DAWDLER)
    burst.begin(3)
    assert set(rabbit_site.settle("active")) == set(burst.accepted())
    assert rabbit_site.cloud.pids() == pids
    assert not any("PRECONDITION_FAILED" in rabbit_site.cloud.log(host) for host in rabbit_site.cloud.state.hosts)
    assert set((rabbit_site.effects() - before).values()) == {1}


def test_a_rabbitmq_short_of_memory_makes_nobody_wait_long(rabbit_site):
    """It takes connections, and then reads no message and says nothing."""
    with rabbit_site.brokers.short_of_memory():
        burst = Burst(rabbit_site.cloud, "blocked")
        began = time.monotonic()
        burst.begin(3, at_once=1)
        accepted = burst.accepted()
        took = (time.monotonic() - began) / 3
    assert len(accepted) == 3
    assert took < fair(5), f"{took:.1f} s a request"
    assert set(rabbit_site.settle("active")) == set(accepted)


def seconds_of_a_boot(cloud: Cloud) -> float:
    """One server, from the request to its end."""
    began = time.monotonic()
    burst = Burst(cloud, "quick")
    burst.begin(1)
    books.settled(cloud, 40)
    return time.monotonic() - began


def waiting(cloud: Cloud) -> int:
    """Messages in all queues."""
    return sum(
        sum(wire.depths(cloud.state.broker_url(domain), names).values()) for domain, names in queues(cloud).items()
    )
