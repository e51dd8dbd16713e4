"""The client of the Compute API: openstacksdk does login and discovery, the requests are ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

from keystoneauth1 import exceptions as login
from openstack import exceptions as sdk
from openstack.config import OpenStackConfig
from openstack.connection import Connection

from cloud.cli import VERSION
from cloud.cli.errors import CliError, ServiceUnavailable, UsageError

NEWEST = (2, 96)  # the newest microversion that this client knows
REQUEST_SECONDS = 30.0
UNAVAILABLE = {502, 503, 504}
WHICH = (
    "Name a cloud of clouds.yaml: --os-cloud NAME, or export OS_CLOUD=NAME. Where the file is not in one of the "
    "usual folders, export OS_CLIENT_CONFIG_FILE=FILE, as `make up` prints it."
)
_ADVICE = {
    401: "Check user, password and project in clouds.yaml, or the OS_ variables.",
    403: "Your role does not allow it: ask an admin, or use another cloud of clouds.yaml: --os-cloud NAME",
}


@dataclass(frozen=True, slots=True)
class KnownServer:
    """The id and the name of a server that was found."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a request that the API did not refuse."""

    request_id: str
    body: dict[str, Any] = field(default_factory=dict)


class Client:
    """One cloud, as one user sees it. Raises CliError; ServiceUnavailable where the same request may work later."""

    def __init__(self, cloud: str | None) -> None:
        logging.getLogger("keystoneauth").setLevel(logging.CRITICAL)  # we report what it warns of
        with _translated_errors():
            config = OpenStackConfig(app_name="stillwater", app_version=VERSION)
            region = config.get_one(cloud)
            region.config["api_timeout"] = region.config.get("api_timeout") or REQUEST_SECONDS
            self._connection = Connection(config=region)
            self._compute = self._connection.compute
            data = self._compute.get_endpoint_data()
        newest = min(NEWEST, (data and data.max_microversion) or (2, 1))
        self._version = f"{newest[0]}.{newest[1]}"

    def send(self, method: str, path: str, body: Any = None, seconds: float = REQUEST_SECONDS) -> Response:
        """Send one request. `seconds`: its timeout. Raises RequestRefused, ServiceUnavailable."""
        more = {} if body is None else {"json": body}
        with _translated_errors():
            response = self._compute.request(path, method, microversion=self._version, timeout=seconds, **more)
        request_id = response.headers.get("X-Openstack-Request-Id", "")
        if response.status_code >= 400:
            raise _refusal(response, request_id)
        return Response(request_id, response.json() if response.content else {})

    def find_server(self, name: str, *, all_projects: bool = False) -> KnownServer:
        """Return the server with this name or id. Raises CliError when there is none, or several of that name."""
        shown = self.read_server(name) if _is_id(name) else None
        if shown is not None:
            return KnownServer(name, shown.get("name", ""))
        query = {"name": f"^{re.escape(name)}$"} | ({"all_tenants": "1"} if all_projects else {})
        found = self.send("GET", f"/servers?{urlencode(query)}").body["servers"]
        if len(found) > 1:
            ids = ", ".join(server["id"] for server in found)
            raise CliError(f"{len(found)} servers are called {name!r}", f"Give an id: {ids}")
        if not found:
            raise CliError(
                f"there is no server {name!r}",
                "See which there are: stillwater server list. One with status UNKNOWN has an id and no name there.",
            )
        return KnownServer(found[0]["id"], name)

    def read_server(self, server_id: str, seconds: float = REQUEST_SECONDS) -> dict[str, Any] | None:
        """Return the server; None when there is none."""
        return self._read(f"/servers/{server_id}", "server", seconds)

    def read_action(self, server_id: str, request_id: str, seconds: float = REQUEST_SECONDS) -> dict[str, Any] | None:
        """Return the instance action of a request; None when there is none."""
        return self._read(f"/servers/{server_id}/os-instance-actions/{request_id}", "instanceAction", seconds)

    def list_servers(self, query: Mapping[str, str], limit: int | None) -> Iterator[dict[str, Any]]:
        """Yield servers, page by page, each once."""
        asked, seen = dict(query) | ({"limit": str(limit)} if limit else {}), set[str]()
        while True:
            page = self.send("GET", "/servers/detail" + (f"?{urlencode(asked)}" if asked else "")).body
            fresh = [server for server in page["servers"] if server["id"] not in seen]
            for server in fresh[: limit - len(seen) if limit else None]:
                yield server
                seen.add(server["id"])
            more = next((link["href"] for link in page.get("servers_links", ()) if link["rel"] == "next"), "")
            if not more or not fresh or (limit and len(seen) >= limit):
                return
            asked = dict(parse_qsl(urlsplit(more).query))

    def find_flavor(self, name: str) -> str:
        """Return the id of a flavor, by name or id. Raises CliError when there is none."""
        return _find("flavor", self._compute.find_flavor, name)

    def find_image(self, name: str) -> str:
        """Return the id of an image, by name or id. Raises CliError when there is none."""
        return _find("image", self._connection.image.find_image, name)

    def _read(self, path: str, key: str, seconds: float) -> dict[str, Any] | None:
        try:
            return dict(self.send("GET", path, seconds=seconds).body[key])
        except RequestRefused as refused:
            if refused.status == 404:
                return None
            raise


class RequestRefused(CliError):
    """The API refused the request."""

    def __init__(self, status: int, request_id: str, sentence: str, advice: str) -> None:
        super().__init__(sentence, advice)
        self.status, self.request_id = status, request_id


def _refusal(response: Any, request_id: str) -> CliError:
    try:
        message = str(next(iter(response.json().values()))["message"])
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        message = response.reason or "no reason given"
    sentence = f"{message.strip()} ({response.status_code})"
    if response.status_code in UNAVAILABLE:
        after = response.headers.get("Retry-After", "")
        return ServiceUnavailable(sentence, f"Try again {f'in {after} s' if after.isdecimal() else 'in a moment'}.")
    advice = _ADVICE.get(response.status_code, "")
    if response.status_code >= 500:
        advice = f"Report it to the operator of this cloud, with the request id {request_id}"
    return RequestRefused(response.status_code, request_id, sentence, advice)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise the errors of the libraries as ours."""
    try:
        yield
    except (sdk.ConfigException, login.MissingRequiredOptions, login.MissingAuthPlugin, login.NoMatchingPlugin) as exc:
        raise UsageError(f"no cloud to log in to: {_one_line(exc)}", WHICH) from exc
    except login.Unauthorized as exc:
        raise CliError(f"the login was refused: {_one_line(exc)}", _ADVICE[401]) from exc
    except login.ConnectionError as exc:
        advice = "Is the cloud up (`make status`), and auth_url in clouds.yaml right?"
        # after ": HTTP" come internals of urllib3
        raise ServiceUnavailable(_one_line(exc).partition(": HTTP")[0], advice) from exc
    except (login.ServiceUnavailable, login.BadGateway, login.GatewayTimeout) as exc:
        raise ServiceUnavailable(_one_line(exc), "Try again in a moment.") from exc
    except (login.ClientException, sdk.SDKException) as exc:
        raise CliError(_one_line(exc), "Check this cloud in clouds.yaml, or the OS_ variables.") from exc


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__


def _find(kind: str, find: Callable[[str], Any], name: str) -> str:
    with _translated_errors():
        found = find(name)
    if found is None:
        raise CliError(f"there is no {kind} {name!r}", f"See which there are: openstack {kind} list")
    return str(found.id)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
