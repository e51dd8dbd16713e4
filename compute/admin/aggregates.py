"""Admin pages of host aggregates and server groups, read-only: the API changes them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from cells.admin_widgets import ReadOnlyPage
from compute.admin import badges
from compute.models import Aggregate, ServerGroup
from compute.placement import server_groups
from compute.placement.aggregates import ZONE


@admin.register(Aggregate)
class AggregatePage(ReadOnlyPage):
    """The page of host aggregates."""

    list_display = ("name", "zone", "hosts_in_it", "says")
    fields = ("name", "uuid", "zone", "hosts_in_it", "says", "created_at", "updated_at")
    readonly_fields = fields
    search_fields = ("name", "hosts__host")
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Aggregate]:
        """Return aggregates with their hosts, in one more query per page."""
        return super().get_queryset(request).prefetch_related("hosts")

    @admin.display(description="Availability zone")
    def zone(self, aggregate: Aggregate) -> str:
        """Return the availability zone of its hosts."""
        return str(aggregate.metadata.get(ZONE, "-"))

    @admin.display(description="Hosts")
    def hosts_in_it(self, aggregate: Aggregate) -> str:
        """Return the host names, sorted."""
        return ", ".join(sorted(one.host for one in aggregate.hosts.all())) or "-"

    @admin.display(description="Metadata")
    def says(self, aggregate: Aggregate) -> str:
        """Return the metadata but the zone: the scheduler matches flavors and projects with it."""
        return ", ".join(f"{key}={value}" for key, value in sorted(aggregate.metadata.items()) if key != ZONE) or "-"


@admin.register(ServerGroup)
class ServerGroupPage(ReadOnlyPage):
    """The page of server groups."""

    list_display = ("name", "policy", "project_id", "size", "home", "created_at")
    fields = ("name", "uuid", "policy", "rules", "project_id", "user_id", "home", "members_of_it", "created_at")
    readonly_fields = fields
    search_fields = ("name", "uuid", "project_id", "members__server_id")
    list_filter = ("policy",)
    ordering = ("name", "pk")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServerGroup]:
        """Return groups with their number of members."""
        return super().get_queryset(request).annotate(known_members=Count("members"))

    @admin.display(description="Members")
    def size(self, group: ServerGroup) -> int:
        """Return the number of members, including servers that are being deleted."""
        return int(getattr(group, "known_members", 0))

    @admin.display(description="Home host")
    def home(self, group: ServerGroup) -> str:
        """Return the home host of an affinity group. A home without members no longer binds new ones."""
        return group.host or "-"

    @admin.display(description="Members")
    def members_of_it(self, group: ServerGroup) -> SafeString | str:
        """Return the members as links, without those queued for deletion."""
        found = server_groups.living([group]).values_list("server_id", flat=True)
        return format_html_join(" ", "{}", ((badges.server_link(one),) for one in found)) or "-"
