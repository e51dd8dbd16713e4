"""Waiting by asking again and again. Errors are retried with tenacity itself, where they occur."""

from __future__ import annotations

from collections.abc import Callable

import tenacity


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Repeat a check every `pause` seconds until it is true. Return False when `seconds` have passed."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_not_result(bool), wait=tenacity.wait_fixed(pause),
        stop=tenacity.stop_after_delay(seconds), retry_error_callback=lambda _: False,
    )  # fmt: skip
    return bool(retrying(condition))
