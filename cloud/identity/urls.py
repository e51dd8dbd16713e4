"""Keystone v3, mounted at /identity without a slash: the routes begin with one."""

from django.urls import path, re_path

from cloud.identity.api import assignments, auth, base, catalog, discovery, projects, users

_GRANTS = "/v3/projects/<str:project_id>/users/<str:user_id>/roles"
_FIXED = {
    "domains": catalog.DomainsView,
    "services": catalog.ServicesView,
    "endpoints": catalog.EndpointsView,
    "regions": catalog.RegionsView,
}

urlpatterns = [
    path("", discovery.VersionsView.as_view()),
    path("/", discovery.VersionsView.as_view()),
    path("/v3", discovery.VersionView.as_view()),
    path("/v3/", discovery.VersionView.as_view()),
    path("/v3/auth/tokens", auth.TokensView.as_view()),
    path("/v3/auth/catalog", auth.CatalogView.as_view()),
    path("/v3/auth/projects", auth.AuthProjectsView.as_view()),
    path("/v3/projects", projects.ProjectsView.as_view()),
    path("/v3/projects/<str:project_id>", projects.ProjectView.as_view()),
    path(_GRANTS, assignments.GrantsView.as_view()),
    path(_GRANTS + "/<str:role_id>", assignments.GrantView.as_view()),
    path("/v3/users", users.UsersView.as_view()),
    path("/v3/users/<str:user_id>", users.UserView.as_view()),
    path("/v3/users/<str:user_id>/password", users.UserPasswordView.as_view()),
    path("/v3/users/<str:user_id>/projects", users.UserProjectsView.as_view()),
    path("/v3/roles", assignments.RolesView.as_view()),
    path("/v3/roles/<str:role_id>", assignments.RoleView.as_view()),
    path("/v3/role_assignments", assignments.RoleAssignmentsView.as_view()),
    *(path(f"/v3/{kind}", view.as_view()) for kind, view in _FIXED.items()),
    *(path(f"/v3/{kind}/<str:record_id>", view.as_view()) for kind, view in _FIXED.items()),
    re_path(r"^/.*$", base.UnknownView.as_view()),
]
