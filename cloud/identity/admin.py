"""Admin pages of users, projects and roles."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from unfold.admin import TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from cloud.admin_page import ModelPage
from cloud.identity.models import Project, RoleAssignment, User


class NewUserForm(UserCreationForm):
    """A name and a password, twice."""

    class Meta:
        model = User
        fields = ("name",)


class UserForm(UserChangeForm):
    """Everything but the password, which has its own page."""

    class Meta:
        model = User
        fields = "__all__"


class Roles(TabularInline):
    """The roles of a user, or in a project."""

    model = RoleAssignment
    extra = 0
    autocomplete_fields = ("user", "project")


@admin.register(User)
class UserPage(DjangoUserAdmin, ModelPage):
    """Users: their password through Django's own forms."""

    form = UserForm
    add_form = NewUserForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("name", "id", "is_active", "is_staff", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    search_fields = ("name", "id", "email")
    ordering = ("name",)
    readonly_fields = ("id", "last_login", "created_at", "revoked_before")
    inlines = (Roles,)
    fieldsets = (
        (None, {"fields": ("id", "name", "password", "email", "description", "default_project_id")}),
        ("Access", {"fields": ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Times", {"fields": ("last_login", "created_at", "revoked_before")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("name", "usable_password", "password1", "password2")}),
    )

    def get_inlines(self, request: HttpRequest, obj: User | None) -> Any:
        """A user that is not there yet has no roles."""
        return self.inlines if obj else ()

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Disabling a user voids its tokens, also should it be enabled again."""
        if not obj.is_active:
            obj.revoke_tokens()
        super().save_model(request, obj, form, change)


@admin.register(Project)
class ProjectPage(ModelPage):
    """Projects. They are not deleted here: what they own would have no owner."""

    list_display = ("name", "id", "enabled", "created_at")
    list_filter = ("enabled",)
    search_fields = ("name", "id")
    ordering = ("name",)
    readonly_fields = ("id", "created_at")
    fields = ("id", "name", "description", "enabled", "created_at")
    inlines = (Roles,)

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        """Never."""
        return False


@admin.register(RoleAssignment)
class RoleAssignmentPage(ModelPage):
    """Who may do what where."""

    list_display = ("user", "role", "project")
    list_filter = ("role",)
    search_fields = ("user__name", "project__name", "user__id", "project__id")
    list_select_related = ("user", "project")
    autocomplete_fields = ("user", "project")
    ordering = ("user__name", "project__name", "role")


admin.site.unregister(Group)


@admin.register(Group)
class GroupPage(DjangoGroupAdmin, ModelPage):
    """What several users may do on these pages."""
