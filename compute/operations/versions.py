"""Service versions: two versions of the code work in one cell during an upgrade, and the older knows fewer steps.

Every service reports its version with its heartbeat (`Service.version`). A step names the version that first knew it
(`StepSpec.known_since`). Three places compare them: a worker does not claim a step that it does not know
(`registry.known`), the API does not accept an action while the services that would run it are older
(`check_known`), and the scheduler does not pick a host that is older (`needed_by_host`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.conf import settings
from django.db.models import Max

from compute.errors import Conflict
from compute.models import Instance, Service
from compute.models.host import CONDUCTOR
from compute.operations.step import On, StepSpec

CURRENT = 2  # raise it with the first step that older workers do not know; 2: hosts have an ops queue


def current() -> int:
    """Return the version of this process: the code's, or an older one that the settings name."""
    return int(settings.SERVICE_VERSION or CURRENT)


def check_known(steps: Iterable[StepSpec], instance: Instance, called: str) -> None:
    """Raise Conflict while a service that would run one of the steps of an action is too old to know it.

    `called`: the action, for the error text. In the targeted cell; without a query for steps that every version knows.
    A destination is not chosen yet: any host of the cell may know the step.
    """
    for spec in steps:
        if spec.known_since <= 1:
            continue
        newest = _newest_that_may_run(spec.on, instance.host)
        if newest < spec.known_since:
            where = {On.CONDUCTOR: "the conductors of its cell", On.DEST: "the hosts of its cell"}
            raise Conflict(
                f"Cannot '{called}' instance {instance.uuid}: {where.get(spec.on, 'its host')} cannot do it before an "
                f"upgrade (service version {newest}; {spec.known_since} is needed). Try again when the upgrade is done."
            )


def needed_by_host(steps: Iterable[StepSpec]) -> int:
    """Return the service version that a host needs to run the steps of an action that goes to it."""
    return max(spec.known_since for spec in steps if spec.on in (On.HOST, On.DEST))


def _newest_that_may_run(on: On, host: str) -> int:
    services = Service.objects.computes()
    if on is On.CONDUCTOR:
        services = Service.objects.filter(binary=CONDUCTOR).alive()
    elif on is not On.DEST:
        services = services.filter(host=host)
    return int(services.aggregate(newest=Max("version"))["newest"] or 0)


def services_by_version() -> Iterator[tuple[str, str, int]]:
    """Yield binary, host and version of every service of the targeted cell that has not ended, oldest version first."""
    rows = Service.objects.filter(ended_at__isnull=True).order_by("version", "binary", "host")
    yield from rows.values_list("binary", "host", "version")
