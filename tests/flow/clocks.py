"""Processes whose clock is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

DAY = timedelta(days=1)


@contextmanager
def clock_of_a_process(ahead: timedelta) -> Iterator[None]:
    """What is done in the block is done by a process whose clock is wrong; the database's is right."""
    right = timezone.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timezone, "now", lambda: right() + ahead)
        yield
