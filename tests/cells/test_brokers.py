"""Publishing to brokers that are not there."""

from __future__ import annotations

import time

from compute import dispatch

NOBODY = "redis://:secret@127.0.0.1:1/0"


def test_a_broker_that_is_away_costs_a_request_no_time():
    """Every boot and delete took two seconds while a Redis was down: kombu slept before its second try."""
    began = time.monotonic()
    assert dispatch.publish(NOBODY, dispatch.SCHEDULER_QUEUE, dispatch.SCHEDULE, {}) is False
    assert time.monotonic() - began < 1
