"""Clients that ask for whatever is legal, all at once, and remember every answer."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import requests

from tests.chaos.place import Place

FLAVOR, OTHERS = "42", ("1", "2")  # m1.nano; those of other sizes, with as much disk
SECONDS = 15  # a client waits for an answer
MOST = 5  # servers of one client
PAUSE = (0.5, 1.5)  # between two requests of a client
SOFT, HARD = {"reboot": {"type": "SOFT"}}, {"reboot": {"type": "HARD"}}
BODIES: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None}, "start": {"os-start": None}, "soft reboot": SOFT, "hard reboot": HARD,
    "pause": {"pause": None}, "unpause": {"unpause": None}, "suspend": {"suspend": None},
    "resume": {"resume": None}, "live-migrate": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
    "migrate": {"migrate": None}, "confirm": {"confirmResize": None}, "revert": {"revertResize": None},
    "rescue": {"rescue": None}, "unrescue": {"unrescue": None}, "shelve": {"shelve": None},
    "unshelve": {"unshelve": None},
}  # fmt: skip
NAMED = ("createImage", "createBackup")  # images they make have a name of their own
LEGAL = {
    "ACTIVE": ["stop", "soft reboot", "hard reboot", "pause", "suspend", "createImage", "createBackup", "live-migrate",
               "live-migrate", "migrate", "resize", "resize", "rebuild", "rescue", "shelve", "delete"],
    "SHUTOFF": ["start", "start", "start", "hard reboot", "createImage", "migrate", "resize", "rebuild", "rescue",
                "shelve", "delete"],
    "VERIFY_RESIZE": ["confirm", "confirm", "revert", "revert", "revert", "delete"],
    "PAUSED": ["unpause", "unpause", "unpause", "hard reboot", "createImage", "live-migrate"],
    "SUSPENDED": ["resume", "resume", "resume", "hard reboot", "createImage"],
    "RESCUE": ["unrescue", "unrescue", "unrescue", "delete"],
    "SHELVED": ["unshelve"],
    "SHELVED_OFFLOADED": ["unshelve", "unshelve", "unshelve", "delete"],
    "ERROR": ["hard reboot", "rebuild", "delete"],
}  # fmt: skip
AT_ANY_TIME = ["delete", "hard reboot"]  # also while the server is busy, now and then
ADMIN = {"live-migrate", "migrate"}  # who may ask for it
IMAGES = ["quick"] * 5 + ["slow"] * 3 + ["deaf", "reluctant", "uncopied", "sticky", "unmoved"]


@dataclass(slots=True)
class Asked:
    """One request. `status` 0: no answer came, so nobody knows yet whether it was accepted."""

    request_id: str
    verb: str
    server_id: str  # "" for a boot without an answer
    name: str  # of the server that was to be booted, or of the image
    at: float
    status: int = 0

    @property
    def accepted(self) -> bool | None:
        """None: look it up."""
        return None if self.status == 0 or self.status >= 500 else self.status < 300


@dataclass
class Story:
    """What all clients asked for; shared by them."""

    place: Place
    prefix: str
    wanted: int
    legal: Mapping[str, list[str]] = field(default_factory=lambda: LEGAL)  # by status
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    end: float = 0.0

    def tell(self, seed: int, clients: int, seconds: float) -> None:
        """Until so many operations were accepted, or the time is up."""
        self.end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=Client(self, random.Random(f"client {seed} {number}"), number).live, daemon=True)
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 4 * SECONDS)

    def enough(self) -> bool:
        """No more is to be asked."""
        return time.monotonic() > self.end or self.count() >= self.wanted

    def count(self) -> int:
        """Operations the API said yes to."""
        with self.lock:
            return sum(one.accepted is True for one in self.asked)

    def remember(self, one: Asked) -> None:
        """Whatever came of it."""
        with self.lock:
            self.asked.append(one)


class Client:
    """One user with a few servers."""

    def __init__(self, story: Story, dice: random.Random, number: int) -> None:
        self.story, self.dice, self.number = story, dice, number
        self.url = f"{story.place.cloud.url}/compute/v2.1/servers"
        self.servers: list[str] = []
        self._session = requests.Session()
        self._headers = {"X-Auth-Token": story.place.token, "OpenStack-API-Version": "compute 2.96"}
        self._booted = 0

    def live(self) -> None:
        """One request after the other."""
        while not self.story.enough():
            few = len(self.servers) < 2
            if few or (len(self.servers) < MOST and self.dice.random() < 0.2):
                self.boot(self.dice.choice(IMAGES))
            else:
                self._ask_any(self.dice.choice(self.servers))
            time.sleep(self.dice.uniform(*PAUSE))

    def boot(self, image: str) -> str:
        """A server more; its id, "" when the answer was no or did not come."""
        self._booted += 1
        name = f"{self.story.prefix}-{self.number}-{self._booted}"
        wanted = {"name": name, "imageRef": self.story.place.images[image], "flavorRef": FLAVOR, "networks": "none"}
        one, answer = self._ask("POST", "", "boot", name, {"server": wanted})
        if answer is None or answer.status_code != 202:
            return ""
        one.server_id = answer.json()["server"]["id"]
        self.servers.append(one.server_id)
        return one.server_id

    def ask(self, verb: str, server_id: str) -> Asked:
        """One operation on one server."""
        if verb == "delete":
            one, _ = self._ask("DELETE", server_id, verb, "")
            if one.accepted:
                self.servers.remove(server_id)
            return one
        name = f"{self.story.prefix}-image-{uuid4()}" if verb in NAMED else ""
        return self._ask("POST", server_id, verb, name, self._body(verb, name))[0]

    def look(self, server_id: str) -> tuple[str, str | None] | None:
        """(status, task state); None when nobody can say now. Gone is ("GONE", None)."""
        try:
            answer = self._session.get(f"{self.url}/{server_id}", headers=self._headers, timeout=SECONDS)
        except requests.RequestException:
            return None
        if answer.status_code == 404:
            return "GONE", None
        if answer.status_code != 200:
            return None
        server = answer.json()["server"]
        return server["status"], server.get("OS-EXT-STS:task_state")

    def read(self, path: str) -> Any:
        """What the API says of a server, below /servers."""
        answer = self._session.get(f"{self.url}{path}", headers=self._headers, timeout=SECONDS)
        answer.raise_for_status()
        return answer.json()

    def _ask_any(self, server_id: str) -> None:
        seen = self.look(server_id)
        status, task = seen or ("", None)
        if status in ("GONE", "DELETED"):
            self.servers.remove(server_id)
            return
        verbs = AT_ANY_TIME if task and self.dice.random() < 0.03 else [] if task else self.story.legal.get(status, [])
        if verbs:
            self.ask(self.dice.choice(verbs), server_id)

    def _body(self, verb: str, name: str) -> dict[str, Any]:
        if verb == "createImage":
            return {verb: {"name": name}}
        if verb == "createBackup":
            return {verb: {"name": name, "backup_type": "daily", "rotation": 1}}
        if verb == "rebuild":
            return {verb: {"imageRef": self.story.place.images["quick"]}}
        if verb == "resize":  # to the flavor it has is refused
            return {verb: {"flavorRef": self.dice.choice(OTHERS)}}
        return BODIES.get(verb, {verb: None})  # one that only a newer version knows: tests/upgrade

    def _ask(self, method: str, server_id: str, verb: str, name: str,
             body: Any = None) -> tuple[Asked, requests.Response | None]:  # fmt: skip
        one = Asked(f"req-{uuid4()}", verb, server_id, name, time.time())
        path = f"/{server_id}" if server_id else ""
        url = f"{self.url}{path}{'/action' if server_id and body else ''}"
        headers = self._headers | {"X-Openstack-Request-Id": one.request_id}
        headers |= {"X-Auth-Token": self.story.place.admin_token} if verb in ADMIN else {}
        answer = None
        try:
            answer = self._session.request(method, url, headers=headers, json=body, timeout=SECONDS)
            one.status = answer.status_code
        except requests.RequestException:
            pass  # the status stays 0
        self.story.remember(one)
        return one, answer
