"""Counts how guests went off: each once, by whomever and however often its end is told."""

from __future__ import annotations

import time

from cloud import log, metrics
from compute.virt.shutdown_timer import Clock

logger = log.get(__name__)
MOST = 1000  # ends remembered


class Ends:
    """Of one process. What ended before it lived it counts only if a step still waits to hear of it."""

    def __init__(self) -> None:
        self._born = time.time()
        self._counted: dict[tuple[str, float], None] = {}

    def count(self, server_id: str, clock: Clock, waited: int) -> bool:
        """Whether it is news."""
        key = (server_id, clock.begun)
        if clock.runs or key in self._counted or not (waited or clock.ended >= self._born):
            return False
        self._counted[key] = None
        if len(self._counted) > MOST:
            del self._counted[next(iter(self._counted))]
        seconds = clock.ended - clock.begun
        if clock.how == "forced":
            metrics.GUESTS_FORCED_OFF.labels(clock.cause).inc()
        if clock.deadline > clock.begun:  # the others had no grace
            metrics.GUEST_SHUTDOWN_SECONDS.labels(clock.how).observe(seconds)
        logger.info("grace.ended", server=server_id, how=clock.how, seconds=round(seconds, 1), signals=clock.signals)
        return True
