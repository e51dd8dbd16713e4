"""Admin page of servers that are not in a cell yet."""

from __future__ import annotations

from django.contrib import admin

from cells import admin_widgets as look
from cells.models import BuildRequest


@admin.register(BuildRequest)
class BuildRequestPage(look.ReadOnlyPage):
    """Servers that are asked for and not in a cell yet. The parameters hold secrets and are not shown."""

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
        """As it was asked for."""
        return str(request.instance.get("display_name", ""))

    @admin.display(description="Waiting", ordering="created_at")
    def waiting(self, request: BuildRequest) -> str:
        """Since it was asked for."""
        return look.age(request.created_at)

    @admin.display(description="Scheduler at work")
    def holder(self, request: BuildRequest) -> str:
        """Whoever has the lease."""
        return request.lease_holder or "-"

    @admin.display(description="Delete asked for", boolean=True)
    def deleting(self, request: BuildRequest) -> bool:
        """It will not be built."""
        return request.delete_requested
