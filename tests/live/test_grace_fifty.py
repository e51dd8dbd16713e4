"""Fifty guests, each with its own way to shut down, are stopped at once; no stop waits for another.

The step of a stop starts the guest's shutdown timer, which is kept with the guest, and then waits: a row in the state
"waiting" that holds no thread, no slot and no message. One thread of the host's process, the watcher, knows when each
timer is due and is told by the hypervisor when a guest is off. Another thread, the recorder, writes that into the row,
whose message is then sent again on the ops queue.
"""

from __future__ import annotations

import statistics

import pytest

from tests.live import fifty
from tests.live.cloud import Cloud
from tests.live.stage import Stage
from tests.machine import fair

LATE = 2.0  # seconds


@pytest.mark.live
def test_fifty_guests_take_as_long_as_the_slowest_and_the_host_goes_on(fake_cloud: Cloud):
    stage = Stage(fake_cloud)
    stopped = fifty.stop_them(stage, "host1", "cell1", "fifty")
    try:
        for begins, words in stopped.words.items():
            assert [said for said in words if not _fits(said, begins)] == []
        # From the moment the last of them was accepted: the requests themselves are not what is asked about here.
        assert stopped.total - stopped.accepted < fifty.SLOWEST + fair(LATE), stopped
        assert max(stopped.late) < fair(LATE)
        assert statistics.median(stopped.late) < fair(0.5)
        calm = stopped.busy.calm()
        assert stopped.busy.most("waiting", calm) > 25
        assert stopped.busy.most("running", calm) <= fifty.ENDS_AT_ONCE  # those whose guest has just gone off
        assert stopped.busy.typical("running", calm) == 0
        assert {what: took for what, took in stopped.answered.items() if took >= fair(1)} == {}
    finally:
        stage.empty()


def _fits(said: str, begins: str) -> bool:
    """The same words; and the seconds, where the guest went off by itself, no more than what anybody may be late."""
    obeys = "guest shut down in "
    if not begins.startswith(obeys):
        return said.startswith(begins)
    least = float(begins.removeprefix(obeys))
    return said.startswith(obeys) and least <= float(said.removeprefix(obeys).split()[0]) < least + fair(LATE)
