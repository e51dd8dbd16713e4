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
    """The form for a new user: a name and a password, twice."""

    class Meta:
        model = User
        fields = ("name",)


class UserForm(UserChangeForm):
    """The form for a user: all but the password, which has its own page."""

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
    """The pages of users. Passwords go through Django's own forms."""

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
        """Return the roles; none for a user that is not saved yet."""
        return self.inlines if obj else ()

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Save the user. Disabling it voids its tokens for good, even if it is enabled again."""
        if not obj.is_active:
            obj.revoke_tokens()
        super().save_model(request, obj, form, change)


@admin.register(Project)
class ProjectPage(ModelPage):
    """The pages of projects. There is no delete: what a project owns would have no owner."""

    list_display = ("name", "id", "enabled", "created_at")
    list_filter = ("enabled",)
    search_fields = ("name", "id")
    ordering = ("name",)
    readonly_fields = ("id", "created_at")
    fields = ("id", "name", "description", "enabled", "created_at")
    inlines = (Roles,)

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        """Return False."""
        return False


@admin.register(RoleAssignment)
class RoleAssignmentPage(ModelPage):
    """The pages of role assignments."""

    list_display = ("user", "role", "project")
    list_filter = ("role",)
    search_fields = ("user__name", "project__name", "user__id", "project__id")
    list_select_related = ("user", "project")
    autocomplete_fields = ("user", "project")
    ordering = ("user__name", "project__name", "role")


admin.site.unregister(Group)


@admin.register(Group)
class GroupPage(DjangoGroupAdmin, ModelPage):
    """The pages of groups: permissions of several users on the admin pages."""
