"""Ironic's API: openstacksdk's baremetal proxy finds it, logs in and speaks its versions; the requests are our own.

Our own, because the proxy's verbs drop the seconds a soft power off may take (openstacksdk 4.22), and repeat for many
seconds what is refused while a node is locked: deadlines are ours to keep.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import openstack
from keystoneauth1.exceptions import ClientException
from openstack.connection import Connection
from openstack.exceptions import SDKException
from requests import RequestException, Response

from compute.virt.base import GuestLocked, HypervisorUnavailable, OperationTimedOut, VirtError
from compute.virt.ironic.node import FIELDS, LISTED, Node

VERSION, SHARD_VERSION = "1.61", "1.82"  # the first that tells of retired nodes (Ussuri); that knows shards
PATIENCE = 30.0  # seconds a node may be locked: a soft power off that was asked for a few seconds takes up to 14
PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between looks at what Ironic does
NOT_FOUND, CONFLICT = 404, 409
OUR_FAULT = frozenset({400, 403, 405, 406, 422})
Seen = TypeVar("Seen", Node, Node | None)
OURS_TO_SEE = ("power", "deploy")  # of what is validated; the rest has no say in a deployment of ours


class NoAnswer(HypervisorUnavailable):
    """No answer came, so nobody here knows whether the request was heard."""


class Busy(GuestLocked, HypervisorUnavailable):
    """Ironic does something with this node, and lets nobody else do anything with it."""


class Taken(VirtError):
    """The node is another server's, or the server is on another node."""


class NoNode(VirtError):
    """Ironic does not know this node."""


class Ironic:
    """One Ironic, or the part of it that a conductor group or a shard names. Connects when it is first asked."""

    def __init__(
        self, url: str, username: str, password: str, cloud: str, *, group: str, shard: str, seconds: float
    ) -> None:
        self._where = (url, username, password, cloud)
        self._part = {name: value for name, value in (("conductor_group", group), ("shard", shard)) if value}
        self._version = SHARD_VERSION if shard else VERSION
        self._seconds = seconds
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.newest = 0  # microversion it speaks, as hypervisors count: 1_115_000 is 1.115

    def nodes(self) -> list[Node]:
        """All of them, with all we want to know."""
        return self._list(FIELDS)

    def servers(self) -> list[Node]:
        """Those that have a server: their power states, in one request for a thousand."""
        return self._list(LISTED, associated="True")

    def node(self, node: str) -> Node:
        """Raises NoNode."""
        return Node.read(self._ask("GET", f"/nodes/{node}?fields={','.join(FIELDS)}"))

    def node_of(self, server: str) -> Node | None:
        """The node this server is on."""
        found = self._ask("GET", f"/nodes?instance_uuid={server}&fields={','.join(FIELDS)}")["nodes"]
        return Node.read(found[0]) if found else None

    def change(self, node: str, columns: Mapping[str, object], patience: float = PATIENCE) -> None:
        """Set columns; None takes one away. Raises Taken, Busy."""
        patch = [
            {"op": "remove", "path": f"/{name}"} if value is None else {"op": "add", "path": f"/{name}", "value": value}
            for name, value in columns.items()
        ]
        self._tell("PATCH", f"/nodes/{node}", patch, patience)

    def power(self, node: str, target: str, seconds: int | None = None, patience: float = PATIENCE) -> None:
        """Ask for "power on", "power off" or "soft power off"; the last one gives up after about `seconds`."""
        body = {"target": target} | ({"timeout": seconds} if seconds else {})
        self._tell("PUT", f"/nodes/{node}/states/power", body, patience)

    def provision(self, node: str, target: str, **more: str) -> None:
        """Ask for "active", "deleted", "rescue" or "unrescue". Raises Unanswered, Busy."""
        self._tell("PUT", f"/nodes/{node}/states/provision", {"target": target, **more}, PATIENCE)

    def why_not(self, node: str) -> str:
        """Why nothing can be deployed on it; "" if something can."""
        found = self._ask("GET", f"/nodes/{node}/validate")
        checks = [(name, found.get(name) or {}) for name in OURS_TO_SEE]
        return "; ".join(f"{name}: {check.get('reason')}" for name, check in checks if check.get("result") is False)

    def until(self, look: Callable[[], Seen], done: Callable[[Seen], bool], until: float) -> Seen:
        """The first look that is `done`; `until` by the monotonic clock. Raises OperationTimedOut.

        An Ironic that is away meanwhile is no answer: what was begun there goes on, or is seen when it is back.
        """
        pause, seen = PAUSE, "it does not answer"
        while True:
            with suppress(HypervisorUnavailable):
                node = look()
                if done(node):
                    return node
                seen = f"node {node.id} is {node.state}, {node.power or 'power unknown'}" if node else "no node"
            left = until - time.monotonic()
            if left <= 0:
                raise OperationTimedOut(f"Ironic took too long: {seen}")
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def close(self) -> None:
        """Let go of its connections."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- the wire

    def _list(self, fields: Sequence[str], **wanted: str) -> list[Node]:
        """Ironic gives a thousand at a time, and where to ask for more."""
        asked = "&".join(f"{name}={value}" for name, value in {**wanted, **self._part}.items())
        path: str | None = f"/nodes?fields={','.join(fields)}" + (f"&{asked}" if asked else "")
        nodes: list[Node] = []
        while path:
            page = self._ask("GET", path)
            nodes += [Node.read(facts) for facts in page["nodes"]]
            path = page["next"][page["next"].index("/nodes?") :] if page.get("next") else None
        return nodes

    def _tell(self, method: str, path: str, body: object, patience: float) -> None:
        until = time.monotonic() + patience
        while True:
            try:
                self._ask(method, path, body)
                return
            except Busy:
                if time.monotonic() + PAUSE >= until:
                    raise
            time.sleep(min(5 * PAUSE, max(0.0, until - time.monotonic())))

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        try:
            answer: Response = self._connected().baremetal.request(
                path, method, json=body, microversion=self._version, timeout=self._seconds, raise_exc=False,
                status_code_retries=0, connect_retries=0,
            )  # fmt: skip
        except (ClientException, SDKException, RequestException) as error:
            if not self.newest:  # what was found out about where it is may be wrong
                self.close()
            raise NoAnswer(f"Ironic does not answer: {error}") from error
        if not answer.ok:
            raise _said(answer)
        self.newest = _count(answer.headers.get("X-OpenStack-Ironic-API-Maximum-Version", "")) or self.newest
        return answer.json() if answer.content else None

    def _connected(self) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection = _connect(*self._where)
            return self._connection


def _connect(url: str, username: str, password: str, cloud: str) -> Connection:
    """An Ironic of its own, with or without a password, or one that clouds.yaml knows the way to."""
    if not url:
        return openstack.connect(cloud=cloud, app_name="stillwater")
    endpoint = f"{url.rstrip('/').removesuffix('/v1')}/v1"
    login = {"username": username, "password": password} if username else {}
    return openstack.connect(
        load_yaml_config=False, load_envvars=False, app_name="stillwater", baremetal_api_version="1",
        baremetal_endpoint_override=endpoint, auth_type="http_basic" if username else "none",
        auth={"endpoint": endpoint, **login},
    )  # fmt: skip


def _said(answer: Response) -> VirtError:
    """What an answer that is no success means to us, in Ironic's words."""
    words = _words(answer)
    if answer.status_code == NOT_FOUND:
        return NoNode(words)
    if answer.status_code == CONFLICT:
        return Busy(words) if "locked" in words else Taken(words)
    if answer.status_code in OUR_FAULT:
        return VirtError(f"Ironic refuses: {words}")
    return HypervisorUnavailable(f"Ironic answers {answer.status_code}: {words}")


def _words(answer: Response) -> str:
    """Ironic puts JSON into JSON, or once only, by version and by who answers."""
    try:
        found = answer.json()["error_message"]
        found = json.loads(found) if isinstance(found, str) else found
        return str(found.get("faultstring") or found.get("description") or found.get("title"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.text[:500] or answer.reason


def _count(version: str) -> int:
    major, _, minor = version.partition(".")
    return int(major) * 1_000_000 + int(minor) * 1_000 if major.isdigit() and minor.isdigit() else 0
