"""Drain migrations: how long all servers take to leave a host, beside the time of the transfers alone."""

from __future__ import annotations

import time
from typing import Any

from tests.live import books, crossings
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage

TRAVEL = 1.0  # seconds the transfer of each guest takes, set on its image
PARALLEL = 4
SOURCE, OTHERS = "host1", ("host3", "host5", "host7")
KEY = "stillwater:drain"
LATEST = 900  # seconds


def run(servers: int) -> dict[str, Any]:
    """Drain a host whose cell has three others, PARALLEL migrations at a time. Times are in seconds."""
    cloud = Cloud("fake", hosts_per_cell=4)
    try:
        cloud.up()
        for other in ("host2", "host4", "host6", "host8", "conductor-cell2"):  # cell2 is not needed
            cloud.manage("host", "stop", other)
        stage = Stage(cloud)
        ids = stage.boot(servers, SOURCE, stage.image(migrate_out_delay=f"{TRAVEL:g}"))
        return _empty(stage, ids)
    finally:
        cloud.up()
        cloud.end()


def _empty(stage: Stage, ids: list[str]) -> dict[str, Any]:
    cloud, asked = stage.cloud, time.time()
    wanted = {KEY: {"migrate": {"parallel": PARALLEL}}}
    answer = stage.call("PUT", f"/os-services/{stage.service(SOURCE)['id']}", wanted)
    assert answer.status_code == 200, answer.text
    eventually("it is drained", lambda: stage.service(SOURCE).get(KEY, {}).get("state") == "drained", LATEST, 0.5)
    drained = time.time()
    books.settled(cloud)
    living = books.check(cloud)  # each server is on one host, and each host's usage is the sum of its servers
    moves = crossings.of(cloud)
    took = sum(ended - begun for _, begun, ended in moves)
    last = max(ended for _, _, ended in moves)
    floor = len(ids) * TRAVEL / PARALLEL
    homes = [row.host for row in living if row.uuid in ids]
    return {
        "servers": len(ids), "parallel": PARALLEL, "travel_s": TRAVEL, "lost": len(ids) - len(homes),
        "at_source": homes.count(SOURCE), "at_others": [homes.count(other) for other in OTHERS],
        "moves": len(moves), "most_at_once": crossings.most_at_once(moves), "mean_move_s": round(took / len(moves), 2),
        "left_s": round(last - asked, 1), "drained_s": round(drained - asked, 1), "floor_s": round(floor, 1),
        "ratio": round((last - asked) / floor, 2), "ratio_to_moves": round((last - asked) / (took / PARALLEL), 2),
    }  # fmt: skip
