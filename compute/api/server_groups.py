"""os-server-groups: servers to be placed together, or apart."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from cloud.errors import BadRequest, NotFound
from compute.api import paging
from compute.api.base import ComputeView
from compute.api.fields import check_query_keys, object_schema, parse_int
from compute.contract import validation
from compute.contract.microversion import Version
from compute.models import ServerGroup
from compute.placement import quota, server_groups

RULE = "os_compute_api:os-server-groups:"


class ServerGroupsView(ComputeView):
    """GET and POST /os-server-groups."""

    def get(self, request: Request) -> Response:
        """List the project's groups, oldest first; with `all_projects`, those of all projects."""
        check_query_keys(self, "all_projects", "limit", "offset")
        self.check(f"{RULE}index")
        found = ServerGroup.objects.order_by("pk")
        if "all_projects" in request.query_params:
            self.check(f"{RULE}index:all_projects")
        else:
            found = found.filter(project_id=self.caller.project_id)
        first = parse_int("offset", validation.check_query("offset", request.query_params.get("offset", "0"), _NUMBER))
        page = list(found[first : first + paging.limit_of(request)])
        return Response({"server_groups": _as_json(page, self.version)})

    def post(self, request: Request) -> Response:
        """Create a group with one policy. Only anti-affinity has the rule `max_server_per_host`."""
        self.check(f"{RULE}create")
        order = validation.check(request.data, _creation(self.version))["server_group"]
        policy = order["policy"] if "policy" in order else order["policies"][0]
        rules = {name: parse_int(name, value, 1) for name, value in order.get("rules", {}).items()}
        if rules and policy != server_groups.ANTI_AFFINITY:
            raise BadRequest("Only anti-affinity policy supports rules.")
        owner = {"project_id": self.caller.project_id, "user_id": self.caller.user_id}
        with transaction.atomic(using="default"):
            quota.check_server_groups(self.caller.project_id)
            made = ServerGroup.objects.create(name=order["name"], policy=policy, rules=rules, **owner)
        return Response({"server_group": _as_json([made], self.version)[0]})


class ServerGroupView(ComputeView):
    """GET and DELETE /os-server-groups/{id}."""

    def get(self, request: Request, group_id: str) -> Response:
        """Show a group with its members, without those queued for deletion."""
        self.check(f"{RULE}show")
        return Response({"server_group": _as_json([self._group(group_id)], self.version)[0]})

    def delete(self, request: Request, group_id: str) -> Response:
        """Delete a group. Its servers stay, without a policy."""
        self.check(f"{RULE}delete")
        with transaction.atomic(using="default"):
            # a boot into this group waits for the lock, and then finds no group
            ServerGroup.objects.select_for_update(of=("self",)).filter(uuid=group_id).first()
            self._group(group_id).delete()
        return Response(status=204)

    def _group(self, group_id: str) -> ServerGroup:
        """Return a group of the caller's project, or any group for an admin. Raises NotFound."""
        found = ServerGroup.objects.filter(uuid=group_id)
        group = (found if self.caller.is_admin else found.filter(project_id=self.caller.project_id)).first()
        if group is None:
            raise NotFound(f"Instance group {group_id} could not be found.")
        return group


_NUMBER = {"type": "string", "pattern": r"^[0-9]+\Z"}
_RULES = object_schema({"max_server_per_host": validation.POSITIVE})


def _creation(version: Version) -> dict[str, Any]:
    if version >= (2, 64):
        policy = {"type": "string", "enum": list(server_groups.POLICIES)}
        group = object_schema({"name": validation.NAME, "policy": policy, "rules": _RULES}, ["name", "policy"])
    else:
        known = server_groups.POLICIES if version >= (2, 15) else server_groups.POLICIES[:2]
        one = {"type": "array", "items": {"enum": list(known)}, "minItems": 1, "maxItems": 1}
        group = object_schema({"name": validation.NAME, "policies": one}, ["name", "policies"])
    return object_schema({"server_group": group}, ["server_group"])


def _as_json(page: list[ServerGroup], version: Version) -> list[dict[str, Any]]:
    """Return the JSON of a page of groups, with one query for all members."""
    members = defaultdict(list)
    for group_id, server_id in server_groups.living(page).values_list("group_id", "server_id"):
        members[group_id].append(server_id)
    return [_one(group, members[group.pk], version) for group in page]


def _one(group: ServerGroup, members: list[str], version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": group.uuid, "name": group.name, "members": members}
    if version >= (2, 64):
        shown |= {"policy": group.policy, "rules": group.rules}
    else:
        shown |= {"policies": [group.policy], "metadata": {}}
    if version >= (2, 13):
        shown |= {"project_id": group.project_id, "user_id": group.user_id}
    return shown
