"""The flavors that a caller may see and use."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from cloud.caller import Caller
from compute.errors import FlavorNotFound
from compute.models import Flavor, FlavorAccess


def open_to(project_id: str) -> Q:
    """Return the filter for public flavors, and private ones the project has access to."""
    granted = FlavorAccess.objects.filter(project_id=project_id).values("flavor")
    return Q(is_public=True) | Q(pk__in=granted)


def visible(caller: Caller) -> QuerySet[Flavor]:
    """Return the flavors that the caller may see."""
    return Flavor.objects.all() if caller.is_admin else Flavor.objects.filter(open_to(caller.project_id))


def get(flavor_id: str, caller: Caller) -> Flavor:
    """Return a flavor by its id. Raises FlavorNotFound, also for a private flavor without access."""
    found = visible(caller).filter(flavor_id=flavor_id).first()
    if found is None:
        raise FlavorNotFound(flavor_id)
    return found
