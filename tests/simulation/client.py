"""Users and operators: their requests to the API, and the answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rest_framework.test import APIClient

from cloud.caller import Caller
from tests.simulation.cloud import PROJECT, Cloud
from tests.simulation.processes import Process

BODIES: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None}, "hard stop": {"os-stop": {"type": "HARD"}}, "start": {"os-start": None},
    "reboot": {"reboot": {"type": "SOFT"}}, "hard reboot": {"reboot": {"type": "HARD"}},
    "pause": {"pause": None}, "unpause": {"unpause": None}, "suspend": {"suspend": None}, "resume": {"resume": None},
    "live-migrate": {"os-migrateLive": {"host": None, "block_migration": "auto"}}, "migrate": {"migrate": None},
    "confirm": {"confirmResize": None}, "revert": {"revertResize": None}, "rescue": {"rescue": None},
    "unrescue": {"unrescue": None}, "shelve": {"shelve": None}, "unshelve": {"unshelve": None},
}  # fmt: skip
ADMIN = {"live-migrate", "migrate", "evacuate", "drain", "undrain", "abort", "force down", "up again"}
MEMBER = Caller("user", "somebody", PROJECT, "a project", frozenset({"member"}))
ROOT = Caller("root", "root", "c" * 32, "admins", frozenset({"admin"}))


@dataclass(slots=True)
class Asked:
    """One request and its answer. `status` 0: no answer came."""

    number: int
    verb: str
    slot: int
    request_id: str
    begun: float
    server_id: str = ""
    ended: float = 0.0
    status: int = 0
    body: Any = field(default=None, repr=False)

    @property
    def accepted(self) -> bool | None:
        """Whether the request was accepted. None: only the databases can tell."""
        return None if self.status == 0 or self.status >= 500 else self.status < 300


@dataclass
class Clients:
    """All API clients. Servers are known by their slots."""

    cloud: Cloud
    asked: list[Asked] = field(default_factory=list)
    servers: dict[int, str] = field(default_factory=dict)

    def ask(self, number: int, verb: str, slot: int, request_id: str, process: Process, extra: Any = None) -> None:
        """Send a request and record its answer, in an actor of an API process. No-op for a slot without a server."""
        sim = self.cloud.sim
        one = Asked(number, verb, slot, request_id, sim.now, self.servers.get(slot, ""))
        if verb != "create" and verb not in ("drain", "undrain", "force down", "up again") and not one.server_id:
            return
        self.asked.append(one)
        sim.say(f"asks: {verb} of server {slot} {one.server_id[:8]} ({request_id[-6:]})")
        answer = self._send(one, extra)
        one.ended, one.status = sim.now, answer.status_code
        sim.say(f"is answered {one.status} to {verb} of server {slot} ({request_id[-6:]})")
        if one.status >= 400:
            one.body = answer.content[:500]
        elif verb == "create":
            one.server_id = self.servers[slot] = answer.json()["server"]["id"]

    def _send(self, one: Asked, extra: Any) -> Any:
        api = APIClient(raise_request_exception=True)
        api.force_authenticate(user=ROOT if one.verb in ADMIN else MEMBER)
        headers = {"HTTP_X_OPENSTACK_REQUEST_ID": one.request_id, "HTTP_OPENSTACK_API_VERSION": "compute 2.96"}
        base = "/compute/v2.1/servers"
        url = f"{base}/{one.server_id}"
        if one.verb == "create":
            server = {"name": f"s{one.slot}", "flavorRef": "1", "imageRef": self.cloud.image, "networks": "none"}
            return api.post(base, {"server": server}, format="json", **headers)
        if one.verb == "delete":
            return api.delete(url, **headers)
        if one.verb in ("drain", "undrain", "force down", "up again"):
            return self._service(api, one, extra, headers)
        if one.verb == "abort":
            return self._abort(api, url, headers)
        return api.post(f"{url}/action", self._body(one, extra), format="json", **headers)

    def _body(self, one: Asked, extra: Any) -> dict[str, Any]:
        if one.verb == "resize":
            return {"resize": {"flavorRef": str(extra)}}
        if one.verb == "snapshot":
            return {"createImage": {"name": f"image-{one.number}"}}
        if one.verb == "rebuild":
            return {"rebuild": {"imageRef": self.cloud.image}}
        if one.verb == "evacuate":
            return {"evacuate": {}}
        return BODIES[one.verb]

    def _abort(self, api: APIClient, url: str, headers: dict[str, str]) -> Any:
        listed = api.get(f"{url}/migrations", **headers)
        found = listed.json().get("migrations", []) if listed.status_code == 200 else []
        if not found:
            return listed
        return api.delete(f"{url}/migrations/{found[0]['id']}", **headers)

    def _service(self, api: APIClient, one: Asked, host: str, headers: dict[str, str]) -> Any:
        listed = api.get("/compute/v2.1/os-services", {"host": host, "binary": "nova-compute"}, **headers)
        found = listed.json().get("services", []) if listed.status_code == 200 else []
        if not found or "id" not in found[0]:  # its cell is down
            return listed
        said: dict[str, Any] = {
            "drain": {"stillwater:drain": {"reason": "simulated"}}, "undrain": {"stillwater:drain": None},
            "force down": {"forced_down": True}, "up again": {"forced_down": False},
        }[one.verb]  # fmt: skip
        return api.put(f"/compute/v2.1/os-services/{found[0]['id']}", said, format="json", **headers)
