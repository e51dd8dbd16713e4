"""The Celery app of every worker process. What a process consumes is decided in `tasks/worker.py`."""

from __future__ import annotations

import logging
import os
import sys
from logging.handlers import WatchedFileHandler
from typing import Any

import django
from celery import Celery, signals
from django.apps import apps
from django.conf import settings

from cloud import env

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cloud.settings")
# Celery would run Django's checks, for which every page of the API is loaded, and forget what they say.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

ROLES = ("scheduler", "conductor", "host")

app = Celery("stillwater")
if "--detach" in sys.argv:
    # `celery multi` begins with such a process: it starts the worker, and says what is wrong with the settings.
    assert settings.ROLE is not None  # noqa: S101  that is: read them
else:
    app.config_from_object("tasks.celeryconfig")
    # Celery reads its settings before it sets Django up, and ours use models. The admin imports `app`.
    if not apps.ready and not apps.loading:
        django.setup()


@signals.worker_init.connect
def _require_worker_name(**_: Any) -> None:
    """A worker without a role would listen to nothing, for ever."""
    if settings.ROLE not in ROLES:
        env.stop(f"STILLWATER_ROLE is {settings.ROLE!r}; a worker is one of {', '.join(ROLES)}.")


@signals.setup_logging.connect
def _log_to_file(logfile: str | None = None, **_: Any) -> None:
    """Our events go to the worker's log file: a detached worker has no standard error."""
    root = logging.getLogger()
    if logfile and root.handlers:
        handler = WatchedFileHandler(logfile)
        handler.setFormatter(root.handlers[0].formatter)
        root.handlers = [handler]
