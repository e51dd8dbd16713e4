"""A server whose machine has a power button: pressed, told of, stopped, started, rebooted, deleted; its host harmed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import requests

from compute.virt.base import GuestNotFound
from compute.virt.fake.driver import FakeDriver
from tests.chaos.place import Place
from tests.chaos.story import SECONDS, Asked, Client, Story
from tests.chaos.supervisor import Supervisor

ON, OFF = "POWER_ON", "POWER_OFF"
EVENT = "power-update"
IMAGE = "switched"
PAUSE = (0.0, 0.6)  # between two moves
# a copy is a task that leaves the machine as it is, so what is pressed meanwhile stays so
REQUESTS = ["stop", "start", "start", "soft reboot", "hard reboot", "hard stop", "createImage", "createImage"]
HARD_STOP = {"os-stop": {"shutdown_type": "HARD"}}
BOOT_SECONDS = 60


class Switcher(Client):
    """A user, an operator and whoever has charge of the machine, of one server at a time."""

    def __init__(self, story: Story, number: int, supervisor: Supervisor) -> None:
        super().__init__(story, random.Random(), number)
        self.place, self.supervisor = story.place, supervisor
        self.server_id, self.host = "", ""
        self.round: list[Asked] = []  # what was asked in this round, in order
        self.log: list[str] = []
        self.told = True  # the last press was told of, and that was heard
        self._driver: FakeDriver | None = None

    def begin(self, seed: str) -> None:
        """A new round, with the server there is or another one."""
        self.dice, self.round, self.log = random.Random(seed), [], [seed]
        if not self.server_id:
            self._settle_in()

    def tell(self) -> None:
        """So many moves, and a last one that is an event or a request."""
        moves: dict[Callable[[], None], float] = {
            self.press: 5, self.say_late: 1, self.request: 5, self.kill: 0.5, self.drain: 0.3, self.wait: 1,
        }  # fmt: skip
        for _ in range(self.dice.randint(4, 9)):
            self.dice.choices([*moves], [*moves.values()])[0]()
            time.sleep(self.dice.uniform(*PAUSE))
        self.dice.choices([self.press, self.request, self.end], [5, 3, 0.5])[0]()

    def is_idle(self) -> bool:
        """Whether nothing goes on with the server, or is to come to it."""
        cell = self.place.cloud.state.hosts[self.host]
        mine = f"server_id = '{self.server_id}'"
        steps = f"SELECT count(*) FROM compute_step WHERE {mine} AND state IN ('queued', 'running', 'waiting')"
        actions = f"SELECT count(*) FROM compute_instanceaction WHERE {mine} AND finished_at IS NULL"
        busy = f"SELECT count(*) FROM compute_instance WHERE uuid = '{self.server_id}' AND task_state IS NOT NULL"
        kept = f"SELECT count(*) FROM cells_deferredevent WHERE {mine}"  # its row was locked too long: it comes later
        asked = [("global", kept), *((cell, question) for question in (steps, actions, busy))]
        return not any(self.place.cloud.ask(database, question)[0][0] for database, question in asked)

    def forget(self) -> None:
        """The next round has another server."""
        self.server_id = ""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # -- moves

    def press(self) -> None:
        """The button; mostly somebody says so."""
        said = self.dice.choice((ON, OFF))
        pressed = False
        if self._driver is not None:
            with suppress(GuestNotFound):
                pressed = self._driver.switch(self.server_id, on=said == ON)
        self.told &= not pressed
        self.log.append(f"{said} pressed: {pressed}")
        if self.dice.random() < 0.8:
            self.say(said)

    def say_late(self) -> None:
        """What is perhaps not so, or was said already."""
        self.say(self.dice.choice((ON, OFF)))

    def say(self, said: str) -> None:
        """To the API. Whatever is said, the machine is asked."""
        one = Asked(f"req-{uuid4()}", EVENT, self.server_id, said, time.time())
        body = {"events": [{"name": EVENT, "server_uuid": self.server_id, "tag": said}]}
        url = f"{self.place.cloud.url}/compute/v2.1/os-server-external-events"
        headers = {"X-Auth-Token": self.place.admin_token, "OpenStack-API-Version": "compute 2.76"}
        headers["X-Openstack-Request-Id"] = one.request_id
        with suppress(requests.RequestException):
            answer = self._session.post(url, json=body, headers=headers, timeout=SECONDS)
            one.status = answer.json()["events"][0]["code"] if answer.status_code in (200, 207) else answer.status_code
        self.told |= one.accepted is True
        self._remember(one, said)

    def request(self) -> None:
        """A user's, legal or not."""
        verb = self.dice.choice(REQUESTS)
        self._remember(self.ask(verb, self.server_id), verb)

    def end(self) -> None:
        """A user deletes it."""
        self._remember(self.ask("delete", self.server_id), "delete")

    def kill(self) -> None:
        """The worker of its host, in the middle of whatever it does."""
        self._harm("SIGKILL")

    def drain(self) -> None:
        """Its host ends what is begun, and is started again."""
        self._harm("SIGTERM")

    def wait(self) -> None:
        """Time for a sync."""
        time.sleep(2 * PAUSE[1])

    def _harm(self, how: str) -> None:
        self.supervisor.harm(self.host, how, self.dice.uniform(0, 1))
        self.log.append(f"{how} {self.host}")

    def _remember(self, one: Asked, what: str) -> None:
        self.round.append(one)
        self.log.append(f"{what}: {one.status} ({one.request_id})")

    def _body(self, verb: str, name: str) -> dict[str, Any]:
        return HARD_STOP if verb == "hard stop" else super()._body(verb, name)

    def _settle_in(self) -> None:
        """A server more, running. Raises AssertionError."""
        deadline = time.monotonic() + BOOT_SECONDS
        while not self.server_id:
            assert time.monotonic() < deadline, "no server could be booted"
            self.server_id = self.boot(IMAGE)
        while (self.look(self.server_id) or ("",))[0] != "ACTIVE" or not (host := self._home()):
            assert time.monotonic() < deadline, f"server {self.server_id} did not come up"
            time.sleep(0.2)
        self.host, self.told = host, True
        self._driver = FakeDriver(state=state_of(self.place, host))

    def _home(self) -> str:
        question = f"SELECT host FROM compute_instance WHERE uuid = '{self.server_id}' AND host <> ''"
        cells = {*self.place.cloud.state.hosts.values()}
        return next((host for cell in cells for (host,) in self.place.cloud.ask(cell, question)), "")


def state_of(place: Place, host: str) -> str:
    """Where a host keeps its machines."""
    return str(place.cloud.state.path("hosts", host, "state", "guests.sqlite3"))
