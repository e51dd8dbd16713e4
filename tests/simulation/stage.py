"""The setup of Django, of the engine's modules and of the simulated world, in the required order."""

from __future__ import annotations

import logging
import os
import sys


def up() -> None:
    """Set everything up; no-op when that is done."""
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

    get_resolver().url_patterns  # noqa: B018  imports the views before time is patched
    from compute.operations import registry

    registry.every()
    from tests.simulation import fence, patches, processes

    patches.put_on()
    processes.put_on()
    fence.put_on()
    patches.is_on = True  # type: ignore[attr-defined]
