"""The Celery app of every worker. `tasks/worker.py` decides what a worker consumes."""

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
# Celery would run Django's checks, which load every page of the API, and discard the result.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

ROLES = ("scheduler", "conductor", "host")

app = Celery("stillwater")
if "--detach" in sys.argv:
    # `celery multi` first starts such a process, which starts the worker and reports errors in the settings.
    assert settings.ROLE is not None  # noqa: S101  reads the settings
else:
    app.config_from_object("tasks.celeryconfig")
    # Celery reads its settings before it calls django.setup(), and ours use models. The admin imports `app`.
    if not apps.ready and not apps.loading:
        django.setup()


@signals.worker_init.connect
def _require_worker_role(**_: Any) -> None:
    """Stop a worker without a role: it would consume no queue, for ever."""
    if settings.ROLE not in ROLES:
        env.stop(f"STILLWATER_ROLE is {settings.ROLE!r}; a worker is one of {', '.join(ROLES)}.")


@signals.setup_logging.connect
def _log_to_file(logfile: str | None = None, **_: Any) -> None:
    """Send our events to the worker's log file: a detached worker has no standard error."""
    root = logging.getLogger()
    if logfile and root.handlers:
        handler = WatchedFileHandler(logfile)
        handler.setFormatter(root.handlers[0].formatter)
        root.handlers = [handler]
