"""A client that goes on asking for an action which only the newer version knows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.ledger import Finding
from tests.chaos.place import Place
from tests.chaos.story import Asked, Client, Story
from tests.live.cloud import eventually

SERVERS = 4
PAUSE = 0.7  # seconds between two requests
EXPECTED = {202, 400, 409}  # 400: an older API does not know it; 409: its worker does not, or the server is busy
STEPS = {"conductor_look": 1, "compute_blink_instance": 1}


class Blinker:
    """Its own servers, and every request it made."""

    def __init__(self, place: Place, prefix: str) -> None:
        self.story = Story(place, f"blink-{prefix}", 10**9)
        self.story.end = time.monotonic() + 10**6
        self._client = Client(self.story, None, 0)  # type: ignore[arg-type]  it chooses nothing
        self._over = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Ask until the end of the block."""
        for _ in range(SERVERS):
            assert self._client.boot("quick")
        for server in self._client.servers:
            eventually(f"{server} is ACTIVE", lambda server=server: self._client.look(server) == ("ACTIVE", None), 60)
        thread = threading.Thread(target=self._blink, name="blinker", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)

    def _blink(self) -> None:
        turn = 0
        while not self._over.wait(PAUSE):
            self._client.ask("blink", self._client.servers[turn % SERVERS])
            turn += 1

    @property
    def asked(self) -> list[Asked]:
        """Its requests for the action."""
        return [one for one in self.story.asked if one.verb == "blink"]

    def findings(self) -> list[Finding]:
        """What is wrong: an unexpected answer, an accepted request that was not carried out, or twice."""
        found = []
        for one in self.asked:
            if one.status not in EXPECTED:
                found.append(Finding("lost", one.server_id, f"{one.request_id} was answered {one.status}"))
            if one.status == 202:
                found += self._compare(one)
        return found

    def _compare(self, one: Asked) -> list[Finding]:
        answer = self._client.read(f"/{one.server_id}/os-instance-actions/{one.request_id}")
        events = answer["instanceAction"]["events"]
        if all(event["finish_time"] for event in events) and Counter(event["event"] for event in events) == STEPS:
            return []
        kind = "double" if len(events) > len(STEPS) else "stuck"
        return [Finding(kind, one.server_id, f"{one.request_id}: {events}")]
