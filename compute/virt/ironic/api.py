"""The client for Ironic's API: openstacksdk's baremetal proxy logs in and negotiates versions; the requests are ours.

The proxy's own verbs do not fit: they drop the timeout of a soft power off (openstacksdk 4.22), and for many seconds
they repeat what Ironic refuses while a node is locked, although the deadlines are ours.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import openstack
import tenacity
from keystoneauth1.exceptions import ClientException
from openstack.connection import Connection
from openstack.exceptions import SDKException
from requests import RequestException, Response

from compute.virt.base import GuestLocked, HypervisorUnavailable, OperationTimedOut, VirtError
from compute.virt.ironic.node import FIELDS, LISTED, Node

VERSION, SHARD_VERSION = "1.61", "1.82"  # the first with retired nodes (Ussuri); the first with shards
PATIENCE = 30.0  # seconds a node may stay locked: a soft power off with a timeout of a few seconds takes up to 14
PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two polls of a node
NOT_FOUND, CONFLICT = 404, 409
OUR_FAULT = frozenset({400, 403, 405, 406, 422})
Seen = TypeVar("Seen", Node, Node | None)
OURS_TO_SEE = ("power", "deploy")  # the validated interfaces that our deployments need


class NoAnswer(HypervisorUnavailable):
    """No answer arrived, so it is unknown whether Ironic received the request."""


class Busy(GuestLocked, HypervisorUnavailable):
    """Ironic works on this node and refuses all other changes meanwhile."""


class Taken(VirtError):
    """The node has another server, or the server is on another node."""


class NoNode(VirtError):
    """Ironic does not know this node."""


class Ironic:
    """One Ironic, or the part of it in a conductor group or a shard. Connects at the first request."""

    def __init__(
        self, url: str, username: str, password: str, cloud: str, *, group: str, shard: str, seconds: float
    ) -> None:
        self._where = (url, username, password, cloud)
        self._part = {name: value for name, value in (("conductor_group", group), ("shard", shard)) if value}
        self._version = SHARD_VERSION if shard else VERSION
        self._seconds = seconds
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self.newest = 0  # its newest microversion as a hypervisor version: 1_115_000 is 1.115

    def nodes(self) -> list[Node]:
        """Return all nodes with all FIELDS."""
        return self._list(FIELDS)

    def servers(self) -> list[Node]:
        """Return the nodes that have a server, with their power states: one request per thousand nodes."""
        return self._list(LISTED, associated="True")

    def node(self, node: str) -> Node:
        """Return one node with all FIELDS. Raises NoNode."""
        return Node.read(self._ask("GET", f"/nodes/{node}?fields={','.join(FIELDS)}"))

    def node_of(self, server: str) -> Node | None:
        """Return the node that this server is on, or None."""
        found = self._ask("GET", f"/nodes?instance_uuid={server}&fields={','.join(FIELDS)}")["nodes"]
        return Node.read(found[0]) if found else None

    def change(self, node: str, columns: Mapping[str, object], patience: float = PATIENCE) -> None:
        """Set fields; None removes one. Retries for `patience` seconds while the node is locked. Raises Taken, Busy."""
        patch = [
            {"op": "remove", "path": f"/{name}"} if value is None else {"op": "add", "path": f"/{name}", "value": value}
            for name, value in columns.items()
        ]
        self._tell("PATCH", f"/nodes/{node}", patch, patience)

    def power(self, node: str, target: str, seconds: int | None = None, patience: float = PATIENCE) -> None:
        """Request "power on", "power off" or "soft power off"; Ironic gives the last one up after about `seconds`.

        Retries for `patience` seconds while the node is locked. Raises Busy. Does not wait for the machine.
        """
        body = {"target": target} | ({"timeout": seconds} if seconds else {})
        self._tell("PUT", f"/nodes/{node}/states/power", body, patience)

    def provision(self, node: str, target: str, **more: str) -> None:
        """Request "active", "deleted", "rescue" or "unrescue". Raises NoAnswer, Busy. Does not wait for the result."""
        self._tell("PUT", f"/nodes/{node}/states/provision", {"target": target, **more}, PATIENCE)

    def why_not(self, node: str) -> str:
        """Return why nothing can be deployed on the node; "" if it can."""
        found = self._ask("GET", f"/nodes/{node}/validate")
        checks = [(name, found.get(name) or {}) for name in OURS_TO_SEE]
        return "; ".join(f"{name}: {check.get('reason')}" for name, check in checks if check.get("result") is False)

    def until(self, look: Callable[[], Seen], done: Callable[[Seen], bool], until: float) -> Seen:
        """Call `look` until its result is `done`, and return that result. `until` is by the monotonic clock.

        A HypervisorUnavailable of `look` is ignored: what Ironic has begun goes on, or is seen when Ironic answers
        again. Raises OperationTimedOut.
        """
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(HypervisorUnavailable) | tenacity.retry_if_not_result(done),
            wait=tenacity.wait_exponential(PAUSE, LONGEST_PAUSE, exp_base=1.5),
            stop=tenacity.stop_after_delay(max(0.0, until - time.monotonic())),
            retry_error_callback=_took_too_long,
        )(look)

    def close(self) -> None:
        """Close the connections; the next request connects again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- requests

    def _list(self, fields: Sequence[str], **wanted: str) -> list[Node]:
        """List nodes. Ironic returns a thousand at a time and the address of the next page."""
        asked = "&".join(f"{name}={value}" for name, value in {**wanted, **self._part}.items())
        path: str | None = f"/nodes?fields={','.join(fields)}" + (f"&{asked}" if asked else "")
        nodes: list[Node] = []
        while path:
            page = self._ask("GET", path)
            nodes += [Node.read(facts) for facts in page["nodes"]]
            path = page["next"][page["next"].index("/nodes?") :] if page.get("next") else None
        return nodes

    def _tell(self, method: str, path: str, body: object, patience: float) -> None:
        tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Busy), wait=tenacity.wait_fixed(5 * PAUSE),
            stop=tenacity.stop_after_delay(patience), reraise=True,
        )(self._ask, method, path, body)  # fmt: skip

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        try:
            answer: Response = self._connected().baremetal.request(
                path, method, json=body, microversion=self._version, timeout=self._seconds, raise_exc=False,
                status_code_retries=0, connect_retries=0,
            )  # fmt: skip
        except (ClientException, SDKException, RequestException) as error:
            if not self.newest:  # it never answered: the endpoint found may be wrong
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


def _took_too_long(polls: tenacity.RetryCallState) -> NoReturn:
    seen = "it does not answer"
    if polls.outcome is not None and not polls.outcome.failed:
        node: Node | None = polls.outcome.result()
        seen = f"node {node.id} is {node.state}, {node.power or 'power unknown'}" if node else "no node"
    raise OperationTimedOut(f"Ironic took too long: {seen}")


def _connect(url: str, username: str, password: str, cloud: str) -> Connection:
    """Connect to the Ironic at `url`, with or without HTTP basic authentication, or to a cloud of clouds.yaml."""
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
    """Return the error that an unsuccessful answer means, with Ironic's text."""
    words = _words(answer)
    if answer.status_code == NOT_FOUND:
        return NoNode(words)
    if answer.status_code == CONFLICT:
        return Busy(words) if "locked" in words else Taken(words)
    if answer.status_code in OUR_FAULT:
        return VirtError(f"Ironic refuses: {words}")
    return HypervisorUnavailable(f"Ironic answers {answer.status_code}: {words}")


def _words(answer: Response) -> str:
    """Return Ironic's error text: JSON inside JSON or plain JSON, depending on the version and on what answers."""
    try:
        found = answer.json()["error_message"]
        found = json.loads(found) if isinstance(found, str) else found
        return str(found.get("faultstring") or found.get("description") or found.get("title"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.text[:500] or answer.reason


def _count(version: str) -> int:
    major, _, minor = version.partition(".")
    return int(major) * 1_000_000 + int(minor) * 1_000 if major.isdigit() and minor.isdigit() else 0
