"""The paths of all resources but servers, below /compute/v2.1/ and /compute/v2.1/{project}/."""

from django.urls import path

from compute.api import (
    aggregates,
    flavor_specs,
    flavors,
    hypervisors,
    keypairs,
    limits,
    migrations,
    quota_sets,
    server_external_events,
    server_groups,
    services,
)
from compute.api import availability_zones as zones

_SPECS = "flavors/<str:flavor_id>/os-extra_specs"
EXTERNAL_EVENTS = "os-server-external-events"
_HYPERVISOR = "os-hypervisors/<str:hypervisor_id>"

_VIEWS = {
    "flavors": flavors.FlavorsView,
    "flavors/detail": flavors.FlavorsDetailView,
    "flavors/<str:flavor_id>": flavors.FlavorView,
    "flavors/<str:flavor_id>/action": flavor_specs.FlavorActionView,
    "flavors/<str:flavor_id>/os-flavor-access": flavor_specs.FlavorAccessView,
    _SPECS: flavor_specs.ExtraSpecsView,
    f"{_SPECS}/<str:key>": flavor_specs.ExtraSpecView,
    "os-keypairs": keypairs.KeyPairsView,
    "os-keypairs/<str:name>": keypairs.KeyPairView,
    "os-quota-sets/<str:project_id>": quota_sets.QuotaSetView,
    "os-quota-sets/<str:project_id>/detail": quota_sets.QuotaSetDetailView,
    "os-quota-sets/<str:project_id>/defaults": quota_sets.QuotaSetDefaultsView,
    "limits": limits.LimitsView,
    "os-migrations": migrations.MigrationsView,
    "os-services": services.ServicesView,
    "os-services/<str:service_id>": services.ServiceView,
    "os-hypervisors": hypervisors.HypervisorsView,
    "os-hypervisors/detail": hypervisors.HypervisorsDetailView,
    "os-hypervisors/statistics": hypervisors.StatisticsView,
    _HYPERVISOR: hypervisors.HypervisorView,
    f"{_HYPERVISOR}/uptime": hypervisors.UptimeView,
    f"{_HYPERVISOR}/search": hypervisors.SearchView,
    f"{_HYPERVISOR}/servers": hypervisors.HypervisorServersView,
    "os-aggregates": aggregates.AggregatesView,
    "os-aggregates/<str:aggregate_id>": aggregates.AggregateView,
    "os-aggregates/<str:aggregate_id>/action": aggregates.AggregateActionView,
    EXTERNAL_EVENTS: server_external_events.ServerExternalEventsView,
    "os-server-groups": server_groups.ServerGroupsView,
    "os-server-groups/<str:group_id>": server_groups.ServerGroupView,
    "os-availability-zone": zones.AvailabilityZonesView,
    "os-availability-zone/detail": zones.AvailabilityZonesDetailView,
}
# With and without a trailing slash: clients differ, and a redirect would lose the body.
urlpatterns = [path(f"{route}{end}", view.as_view()) for route, view in _VIEWS.items() for end in ("", "/")]
