"""Django, the engine's modules and the simulated world, in the order in which they have to come."""

from __future__ import annotations

import logging
import os
import sys


def up() -> None:
    """Once a process."""
    if "tests.simulation.patches" in sys.modules and getattr(sys.modules["tests.simulation.patches"], "is_on", False):
        return
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.simulation.settings"
    import django

    from tests.simulation import (
        log,
        settings,  # noqa: F401
    )

    django.setup()
    log.put_on()
    logging.disable(logging.CRITICAL)
    from django.urls import get_resolver

    get_resolver().url_patterns  # noqa: B018  views are imported before time is ours
    from compute.operations import registry

    registry.every()
    from tests.simulation import fence, patches, processes

    patches.put_on()
    processes.put_on()
    fence.put_on()
    patches.is_on = True  # type: ignore[attr-defined]
