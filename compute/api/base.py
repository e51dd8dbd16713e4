"""The base view of the Compute API (microversion, caller, policy, headers), and the links of resources."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from cloud.caller import Caller
from cloud.errors import BadRequest, NotFound
from compute.contract import microversion, policy
from compute.contract.microversion import Version


class ComputeView(APIView):
    """The base class of resources. `since` and `until` bound its microversions: outside them the answer is 404."""

    since: Version = microversion.MINIMUM
    until: Version = (2, 999)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Negotiate the microversion, authenticate, and check the project in the URL if there is one.

        Raises NotFound outside the view's microversions, BadRequest for a project that is not the caller's.
        """
        self.version = microversion.asked(request.headers)
        super().initial(request, *args, **kwargs)
        if not self.since <= self.version <= self.until:
            raise NotFound
        mine, url = self.caller.project_id, self.url_project
        if url is not None and url != mine:
            raise BadRequest(
                f"Malformed request URL: URL's project_id '{url}' doesn't match Context's project_id '{mine}'"
            )

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Dispatch as DRF does, but keep the project id of the URL out of the handler's arguments."""
        self.url_project = kwargs.pop("url_project", None)
        response = super().dispatch(request, *args, **kwargs)
        del self.response  # view and request form a cycle: what the view holds, only the garbage collector frees
        return self._with_version(response)

    @property
    def caller(self) -> Caller:
        """The authenticated caller."""
        caller = self.request.user
        assert isinstance(caller, Caller)  # noqa: S101  the authentication class returns nothing else
        return caller

    @property
    def request_id(self) -> str:
        """The id of this request, as in logs, answers and the journal."""
        return str(getattr(self.request, "request_id", ""))

    def check(self, rule: str, project_id: str | None = None, user_id: str | None = None) -> None:
        """Raise Forbidden unless the caller passes the policy rule."""
        policy.check(self.caller, rule, project_id, user_id)

    def allows(self, rule: str) -> bool:
        """Return whether the caller passes the policy rule."""
        return policy.allows(self.caller, rule)

    def body(self, key: str | None = None) -> Any:
        """Return the request's JSON object, or the value of its `key`. Raises BadRequest."""
        data = self.request.data
        if not isinstance(data, dict) or (key is not None and key not in data):
            raise BadRequest("Malformed request body" if key is None else f"'{key}' is a required property")
        return data if key is None else data[key]

    def _with_version(self, response: HttpResponseBase) -> HttpResponseBase:
        asked = getattr(self, "version", None)
        if asked is not None:
            response["OpenStack-API-Version"] = f"compute {microversion.text(asked)}"
            response["X-OpenStack-Nova-API-Version"] = microversion.text(asked)
            response["Vary"] = "OpenStack-API-Version, X-OpenStack-Nova-API-Version"
        return response


class NowhereView(ComputeView):
    """The view of every unknown path: a 404 in the shape of all other errors."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise NotFound after authentication, as Nova does: a caller without a token learns no paths."""
        super().initial(request, *args, **kwargs)
        raise NotFound


def link(path: str) -> str:
    """Return an absolute link into the Compute API: `link("/servers/…")`."""
    return f"{settings.PUBLIC_URL}/compute/v2.1{path}"


def bookmark(path: str) -> str:
    """Return an absolute link without a version."""
    return f"{settings.PUBLIC_URL}/compute{path}"


def links(path: str) -> list[dict[str, str]]:
    """Return the `self` and `bookmark` links of a resource."""
    root = f"{settings.PUBLIC_URL}/compute"
    return [{"rel": "self", "href": f"{root}/v2.1{path}"}, {"rel": "bookmark", "href": f"{root}{path}"}]
