"""The Celery app of every worker process. What a process consumes is decided in `tasks/worker.py`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cloud.settings")

app = Celery("stillwater")
app.config_from_object("tasks.celeryconfig")
