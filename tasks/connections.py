"""The connections to databases that the threads of schedulers and conductors keep from one task to the next.

Celery closes them around each task unless CELERY_DB_REUSE_MAX says otherwise, and two new ones cost more than the
queries of a boot. A connection is kept for KEEP seconds only: a new one to a database that hangs fails within
seconds, a query on an open one waits until the database works again.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import signals
from django.db import close_old_connections, connections

KEEP = 1.0  # seconds
_here = threading.local()


def attach() -> None:
    """Connect to Celery's signals."""
    signals.task_prerun.connect(renew, weak=False)
    signals.task_postrun.connect(note_use, weak=False)


def renew(**_: Any) -> None:
    """Close the connections of this thread that it has not just used, and those that are broken or too old."""
    if time.monotonic() - getattr(_here, "used_at", 0.0) > KEEP:
        connections.close_all()
    else:
        close_old_connections()


def note_use(**_: Any) -> None:
    """Note that a task of this thread has used its connections."""
    _here.used_at = time.monotonic()
