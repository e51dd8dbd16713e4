"""Many boots and deletes at once through the API, as clients that do not mind being refused."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import requests

from tests.live.cloud import Cloud, eventually

FLAVOR = "42"  # m1.nano
API_SECONDS = 30


class Burst:
    """Boots that go on in the background: `begin`, do harm, `accepted` when all have been answered."""

    def __init__(self, cloud: Cloud, prefix: str, image: str = "micro") -> None:
        self.cloud, self.prefix = cloud, prefix
        self._url = f"{cloud.url}/compute/v2.1/servers"
        sdk = cloud.sdk()
        self._headers = {"X-Auth-Token": sdk.auth_token, "OpenStack-API-Version": "compute 2.96"}
        self._image = next(found.id for found in sdk.image.images() if found.name == image)
        self._lock = threading.Lock()
        self._ids: list[str] = []
        self._boots: list[Future[None]] = []

    def begin(self, count: int, at_once: int = 3) -> None:
        """Ask for `count` servers, and come back when the first has been accepted."""
        pool = ThreadPoolExecutor(at_once)
        self._boots = [pool.submit(self._boot, f"{self.prefix}-{number}") for number in range(count)]
        pool.shutdown(wait=False)
        eventually("one boot is accepted", lambda: self._ids, 30, pause=0.02)

    def so_far(self) -> list[str]:
        """Servers accepted until now."""
        with self._lock:
            return list(self._ids)

    def accepted(self) -> list[str]:
        """Servers accepted in all, once every boot has been answered or has failed."""
        for boot in self._boots:
            boot.result(API_SECONDS * len(self._boots))
        return self.so_far()

    def delete(self, ids: list[str]) -> list[str]:
        """Delete them; those for which the API said yes."""
        return [uuid for uuid in ids if self._answer("DELETE", f"/{uuid}") == 204]

    def _boot(self, name: str) -> None:
        server = {"name": name, "imageRef": self._image, "flavorRef": FLAVOR, "networks": "none"}
        self._answer("POST", "", {"server": server})

    def _answer(self, method: str, path: str, body: Any = None) -> int:
        """The status; 0 when the API is not there."""
        url = self._url + path
        try:
            answer = requests.request(method, url, headers=self._headers, json=body, timeout=API_SECONDS)
        except requests.RequestException:
            return 0
        if method == "POST" and answer.status_code == 202:
            with self._lock:
                self._ids.append(answer.json()["server"]["id"])
        return answer.status_code
