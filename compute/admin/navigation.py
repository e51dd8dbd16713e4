"""The menu of the admin pages."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.urls import reverse

GROUPS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    ("", (("Overview", "dashboard", "admin:index", ""),)),
    ("Compute", (
        ("Servers", "dns", "admin:cells_instancemapping_changelist", "cells.view_instancemapping"),
        ("In progress", "pending_actions", "admin:actions_in_progress", "cells.view_instancemapping"),
        ("Migrations", "swap_horiz", "admin:migrations", "cells.view_instancemapping"),
        ("Build requests", "hourglass_empty", "admin:cells_buildrequest_changelist", "cells.view_buildrequest"),
        ("Hosts", "host", "admin:cells_hostmapping_changelist", "cells.view_hostmapping"),
        ("Services", "memory", "admin:services", "cells.view_hostmapping"),
        ("Aggregates", "dataset", "admin:compute_aggregate_changelist", "compute.view_aggregate"),
        ("Server groups", "workspaces", "admin:compute_servergroup_changelist", "compute.view_servergroup"),
        ("Cells", "hub", "admin:cells_cell_changelist", "cells.view_cell"),
    )),
    ("Catalog", (
        ("Flavors", "straighten", "admin:compute_flavor_changelist", "compute.view_flavor"),
        ("Quotas", "speed", "admin:compute_quota_changelist", "compute.view_quota"),
        ("Key pairs", "key", "admin:compute_keypair_changelist", "compute.view_keypair"),
        ("Images", "album", "admin:images_image_changelist", "images.view_image"),
    )),
    ("Identity", (
        ("Users", "person", "admin:identity_user_changelist", "identity.view_user"),
        ("Projects", "folder", "admin:identity_project_changelist", "identity.view_project"),
        ("Roles", "badge", "admin:identity_roleassignment_changelist", "identity.view_roleassignment"),
    )),
)  # fmt: skip


def menu(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the menu entries the user may see. Called by unfold."""
    groups = []
    for title, entries in GROUPS:
        items = [
            {"title": name, "icon": icon, "link": reverse(page), "active": request.path == reverse(page)}
            for name, icon, page, permission in entries
            if not permission or request.user.has_perm(permission)
        ]
        groups.append({"title": title, "separator": bool(title), "items": items})
    return groups
