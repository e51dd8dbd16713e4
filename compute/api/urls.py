"""Every path of the Compute API, mounted at /compute. A project id in the URL is optional, as in Nova."""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, include, path

from compute.api import (
    instance_actions,
    migrations,
    server_actions,
    server_external_events,
    server_metadata,
    servers,
    versions,
)
from compute.api.base import NowhereView
from compute.api.resource_urls import EXTERNAL_EVENTS
from compute.api.resource_urls import urlpatterns as resources


def _both(route: str, view: Any) -> list[URLPattern]:
    """Return the path with and without a trailing slash: clients differ, and a redirect would lose the body."""
    return [path(route, view), path(f"{route}/", view)]


_server = "servers/<str:server_id>"
_servers: list[URLPattern | URLResolver] = [
    *_both("servers", servers.ServersView.as_view()),
    *_both("servers/detail", servers.ServersDetailView.as_view()),
    *_both(_server, servers.ServerView.as_view()),
    *_both(f"{_server}/action", server_actions.ServerActionView.as_view()),
    *_both(f"{_server}/metadata", server_metadata.MetadataView.as_view()),
    *_both(f"{_server}/metadata/<str:key>", server_metadata.MetadataItemView.as_view()),
    *_both(f"{_server}/tags", server_metadata.TagsView.as_view()),
    *_both(f"{_server}/tags/<str:tag>", server_metadata.TagView.as_view()),
    *_both(f"{_server}/ips", server_metadata.AddressesView.as_view()),
    *_both(f"{_server}/ips/<str:label>", server_metadata.AddressesView.as_view()),
    *_both(f"{_server}/migrations", migrations.ServerMigrationsView.as_view()),
    *_both(f"{_server}/migrations/<str:migration_id>", migrations.ServerMigrationView.as_view()),
    *_both(f"{_server}/migrations/<str:migration_id>/action", migrations.ServerMigrationActionView.as_view()),
    *_both(f"{_server}/os-instance-actions", instance_actions.InstanceActionsView.as_view()),
    *_both(f"{_server}/os-instance-actions/<str:action_id>", instance_actions.InstanceActionView.as_view()),
]
_v21 = [*_servers, *resources]
urlpatterns = [
    path("", versions.VersionsView.as_view()),
    path("/", versions.VersionsView.as_view()),
    path("/v2.1", versions.VersionView.as_view()),
    path("/v2.1/", versions.VersionView.as_view()),
    path("/v2.1/", include(_v21)),
    path("/v2.1/<str:url_project>/", include(_v21)),
    path("/v2.1/<path:rest>", NowhereView.as_view()),
    # for an Ironic whose endpoint_override has no version
    *_both(f"/{EXTERNAL_EVENTS}", server_external_events.ServerExternalEventsView.as_view()),
]
