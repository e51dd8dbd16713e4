"""Admin pages of flavors, quotas and key pairs."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from unfold.admin import TabularInline
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from cells.admin_widgets import ReadOnlyPage
from cloud.admin_page import ModelPage
from compute.models import Flavor, FlavorAccess, KeyPair, Quota


class FlavorForm(forms.ModelForm):
    """The form of a flavor, with the checks of the API."""

    description = forms.CharField(required=False, empty_value=None, widget=UnfoldAdminTextareaWidget)

    class Meta:
        model = Flavor
        fields = (
            "name", "flavor_id", "description", "vcpus", "memory_mb", "disk_gb", "ephemeral_gb", "swap_mb",
            "rxtx_factor", "is_public", "disabled", "extra_specs",
        )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        """Require at least one CPU and 1 MiB, and extra specs whose values are strings."""
        data = super().clean() or self.cleaned_data
        for name in ("vcpus", "memory_mb"):
            if data.get(name) == 0:
                self.add_error(name, "At least 1.")
        specs = data.get("extra_specs")
        words = isinstance(specs, dict) and all(isinstance(value, str) for value in specs.values())
        if specs and not words:
            self.add_error("extra_specs", 'An object whose values are strings: {"hw:cpu_policy": "shared"}.')
        return data


class Access(TabularInline):
    """The projects that may use a private flavor."""

    model = FlavorAccess
    extra = 0


@admin.register(Flavor)
class FlavorPage(ModelPage):
    """The page of flavors. Servers keep a snapshot, so a change here changes no server."""

    form = FlavorForm
    list_display = ("name", "flavor_id", "vcpus", "memory_mb", "disk_gb", "is_public", "disabled")
    list_filter = ("is_public", "disabled")
    search_fields = ("name", "flavor_id")
    ordering = ("memory_mb", "name")
    readonly_fields = ("created_at", "updated_at")
    inlines = (Access,)


class QuotaForm(forms.ModelForm):
    """The form of a project's limit of one resource."""

    resource = forms.ChoiceField(
        choices=lambda: [(name, name) for name in settings.QUOTA_DEFAULTS], widget=UnfoldAdminSelectWidget
    )
    limit = forms.IntegerField(min_value=-1, help_text="-1: unlimited.", widget=UnfoldAdminIntegerFieldWidget)

    class Meta:
        model = Quota
        fields = ("project_id", "resource", "limit")


@admin.register(Quota)
class QuotaPage(ModelPage):
    """The page of limits that are set for projects."""

    form = QuotaForm
    list_display = ("project_id", "resource", "limit", "default")
    list_filter = ("resource",)
    search_fields = ("project_id",)
    ordering = ("project_id", "resource")

    @admin.display(description="Default")
    def default(self, quota: Quota) -> str:
        """Return the limit that holds without this row."""
        return str(settings.QUOTA_DEFAULTS.get(quota.resource, "-"))


@admin.register(KeyPair)
class KeyPairPage(ReadOnlyPage):
    """The page of users' public keys."""

    list_display = ("name", "user_id", "type", "fingerprint", "created_at")
    search_fields = ("name", "user_id", "fingerprint")
    list_filter = ("type",)
    ordering = ("name", "user_id")
