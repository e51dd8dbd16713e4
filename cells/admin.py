"""Admin page of build requests: servers that are accepted and have no cell yet."""

from __future__ import annotations

from django.contrib import admin

from cells import admin_widgets as look
from cells.models import BuildRequest


@admin.register(BuildRequest)
class BuildRequestPage(look.ReadOnlyPage):
    """The page of build requests. The parameters hold secrets and are not shown."""

    list_display = (
        "server_id",
        "server_name",
        "project_id",
        "request_id",
        "waiting",
        "holder",
        "sends",
        "deleting",
    )
    fields = (
        "server_id", "server_name", "project_id", "user_id", "request_id", "created_at", "holder",
        "lease_until", "sends", "sent_at", "deleting",
    )  # fmt: skip
    readonly_fields = fields
    search_fields = ("server_id", "project_id", "request_id")
    ordering = ("created_at",)

    @admin.display(description="Name")
    def server_name(self, request: BuildRequest) -> str:
        """Return the requested display name."""
        return str(request.instance.get("display_name", ""))

    @admin.display(description="Waiting", ordering="created_at")
    def waiting(self, request: BuildRequest) -> str:
        """Return the time since the request."""
        return look.age(request.created_at)

    @admin.display(description="Scheduler")
    def holder(self, request: BuildRequest) -> str:
        """Return the scheduler that holds the lease."""
        return request.lease_holder or "-"

    @admin.display(description="Delete requested", boolean=True)
    def deleting(self, request: BuildRequest) -> bool:
        """Return whether a delete is requested. It wins over the build."""
        return request.delete_requested
