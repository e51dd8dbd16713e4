"""Shutdown of fifty guests of one host at once, beside the slowest of them, and what else the host does meanwhile."""

from __future__ import annotations

import statistics
from typing import Any

from tests.live import fifty
from tests.live.cloud import Cloud
from tests.live.stage import Stage

SLOTS = 4  # steps the host runs at the same time


def run() -> dict[str, Any]:
    """Measure in a cloud whose hosts have few slots. Times are in seconds."""
    with Cloud("fake", STILLWATER_HOST_SLOTS=str(SLOTS)) as cloud:
        stage = Stage(cloud)
        stopped = fifty.stop_them(stage, "host1", "cell1", "bench")
        stage.empty()
    calm = stopped.busy.calm()
    return {
        "guests": sum(will.count for will in fifty.WILLS), "slots": SLOTS, "slowest_s": fifty.SLOWEST,
        "accepted_s": round(stopped.accepted, 2), "asked_s": round(calm, 2), "total_s": round(stopped.total, 2),
        "ratio": round(stopped.total / fifty.SLOWEST, 2), "late_median_s": round(statistics.median(stopped.late), 3),
        "late_most_s": round(max(stopped.late), 2), "waiting_most": stopped.busy.most("waiting"),
        "busy_most": stopped.busy.most("running"), "busy_typical": stopped.busy.typical("running", calm),
        "answered_s": {what: round(took, 2) for what, took in stopped.answered.items()},
    }  # fmt: skip
