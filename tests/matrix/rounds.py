"""A round of the matrix: many operations, each held at its step, one process ended for all of them, then the books.

What is held goes on when the process has died, or drains; an init system starts it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from cloud.failpoints import HELD
from tests.chaos import ledger, records
from tests.chaos.place import Place
from tests.chaos.supervisor import Supervisor
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.matrix.judge import Seen, judge
from tests.matrix.operations import HOST, IMAGE, OPERATIONS, PROCESSES, SOURCE, Scene
from tests.matrix.rows import TERM, Row

# what is held has a thread each
SLOTS = {"STILLWATER_HOST_SLOTS": "100", "STILLWATER_LONG_SLOTS": "100", "STILLWATER_CONDUCTOR_SLOTS": "60"}
ASKERS = 4
HELD_SECONDS, DEAD_SECONDS, REST_SECONDS = 90, 90, 150
AWAY = 1.0  # seconds between a death and the next life
DELAYS = {"migrate_out_delay": "0.5"}
Say = Callable[[str], None]


class Rounds:
    """The cloud of the matrix."""

    driver: ClassVar[str] = "fake"

    def __init__(self, cloud: Cloud, supervisor: Supervisor, say: Say) -> None:
        self.cloud, self.stage, self.supervisor, self.say = cloud, Stage(cloud), supervisor, say
        self.holds = Path(cloud.settings["STILLWATER_HOLD_AT"])

    def play(self, rows: Iterable[Row]) -> dict[Row, tuple[str, list[str]]]:
        """Row -> how it ended, and what is wrong with that. All rows are of one round."""
        began = time.monotonic()
        servers = self._ready(list(rows))
        who, how, scene = next(iter(servers)).round
        earlier = {row: self._earlier(uuid) for row, uuid in servers.items()}
        if scene != Scene.WELL:
            self._lose_source()
        for row, uuid in servers.items():
            self._hold(row, uuid)
        refused = self._ask(servers)
        if scene == Scene.RETURNS:
            self._rest(but="step remove ")
            self._source_returns()
        unheld = refused | self._all_held({row: uuid for row, uuid in servers.items() if row not in refused})
        self._blow([name for name in PROCESSES[who] if scene != Scene.GONE or name != HOST[SOURCE]], how)
        if scene == Scene.GONE:
            self._rest(but="step remove ")
            self._source_returns()
        self._rest()
        if scene != Scene.WELL:
            self._force_down(down=False)  # not before it has let go of everything
        found = self._look(servers, earlier)
        verdicts = {row: judge(row, seen, unheld.get(row, "")) for row, seen in found.items()}
        self._empty(servers, verdicts)
        self.say(f"{who} {how}: {len(servers)} rows in {time.monotonic() - began:.0f} s ({scene})")
        return verdicts

    # -- before

    def _ready(self, rows: list[Row]) -> dict[Row, str]:
        """A server for each, as its operation needs it."""
        for row in rows:
            self._image(row)  # made here, or several askers would make it
        servers = dict(zip(rows, self._all(self._boot, rows), strict=True))
        self._until(servers.values(), "active")
        led = [row for row in rows if OPERATIONS[row.operation].lead_in]
        self._all(lambda row: self._send(OPERATIONS[row.operation].lead_in, row, servers[row]), led)
        for state in {OPERATIONS[row.operation].ready for row in led}:
            self._until([servers[row] for row in led if OPERATIONS[row.operation].ready == state], state)
        return servers

    def _boot(self, row: Row) -> str:
        return self.stage.order(self._image(row), HOST[SOURCE], str(row))

    def _image(self, row: Row) -> str:
        return self.stage.image(**(DELAYS | dict(OPERATIONS[row.operation].faults)))

    def _send(self, body: dict[str, Any], row: Row, uuid: str) -> int:
        [(key, value)] = body.items()
        if value:
            value = {name: self._image(row) if what == IMAGE else what for name, what in value.items()}
        return self.stage.ask(uuid, {key: value})

    def _hold(self, row: Row, uuid: str) -> None:
        kind = "undo" if OPERATIONS[row.operation].undone else "step"
        moment = "worked" if row.worked else "begun" if kind == "undo" else "claimed"
        (self.holds / uuid).write_text(f"{kind}.{moment}:{row.step}")

    def _ask(self, servers: dict[Row, str]) -> dict[Row, str]:
        """Ask for everything; what was refused."""
        answers = self._all(lambda row: self._send(OPERATIONS[row.operation].body, row, servers[row]), list(servers))
        return {row: f"refused: {status}" for row, status in zip(servers, answers, strict=True) if status >= 300}

    def _all_held(self, servers: dict[Row, str]) -> dict[Row, str]:
        """Wait for it; what did not come as far as it should."""
        held = {row: (self.holds / uuid).with_suffix(HELD) for row, uuid in servers.items()}
        with suppress(AssertionError):
            eventually("all are held", lambda: all(file.exists() for file in held.values()), HELD_SECONDS)
        return {row: "it never came to its step" for row, file in held.items() if not file.exists()}

    def _lose_source(self) -> None:
        """Its machine is off, and an operator has said so."""
        self.supervisor.harm(HOST[SOURCE], "SIGKILL", math.inf)
        eventually("it is gone", lambda: not self.supervisor.pid(HOST[SOURCE]), DEAD_SECONDS, 0.05)
        self._force_down(down=True)

    def _source_returns(self) -> None:
        self.supervisor.let(HOST[SOURCE])
        eventually("everything runs", self.supervisor.all_up, DEAD_SECONDS, 0.2)

    def _force_down(self, *, down: bool) -> None:
        service = self.stage.service(HOST[SOURCE])["id"]
        assert self.stage.call("PUT", f"/os-services/{service}", {"forced_down": down}).status_code == 200

    # -- the blow

    def _blow(self, names: list[str], how: str) -> None:
        """End them. What is held goes on when all have died, or drain."""
        deaths = dict(self.supervisor.deaths)

        def dead(name: str) -> bool:
            return self.supervisor.deaths[name] > deaths[name]

        for name in names:
            assert self.supervisor.harm(name, how, AWAY), f"{name} did not run"
        for name in names:
            stops = (lambda name: dead(name) or self._drains(name)) if how == TERM else dead
            eventually(f"{name} stops", partial(stops, name), DEAD_SECONDS, 0.05)
        self.release()
        for name in names:
            eventually(f"{name} has ended", partial(dead, name), DEAD_SECONDS, 0.1)
        eventually("they run", lambda: all(self.supervisor.pid(name) for name in names), DEAD_SECONDS, 0.2)

    def release(self) -> None:
        """Nobody is held any more."""
        for file in self.holds.iterdir():
            file.unlink()

    def _drains(self, name: str) -> bool:
        rows = self.cloud.ask("cell1", f"SELECT draining_since FROM compute_service WHERE host = '{name}'")
        return any(since is not None for (since,) in rows)

    # -- and after it

    def _rest(self, but: str = "-") -> None:
        """Until nothing is in progress, but for what begins so."""

        def unfinished() -> list[str]:
            return [what for what in books.unfinished(self.cloud) if not what.startswith(but)]

        try:
            eventually("nothing in progress", lambda: not unfinished(), REST_SECONDS)
        except AssertionError as stuck:
            self.say(f"{stuck}: {unfinished()}")

    def _earlier(self, uuid: str) -> int:
        """How much was done to a guest so far."""
        return len(self.stage.effects(uuid))

    def _look(self, servers: dict[Row, str], earlier: dict[Row, int]) -> dict[Row, Seen]:
        found = records.read(self.cloud)
        leaks = ledger.leaks(self.cloud, found)
        return {
            row: Seen(
                shown=self.stage.show(uuid), actions=found.actions[uuid],
                effects=[effect.verb for effect in found.effects[uuid]][earlier[row] :],
                guests={host: guests[uuid] for host, guests in found.guests.items() if uuid in guests},
                leaks=[leak.words for leak in leaks if leak.server in (uuid, "")],
            )
            for row, uuid in servers.items()
        }  # fmt: skip

    def _empty(self, servers: dict[Row, str], verdicts: dict[Row, tuple[str, list[str]]]) -> None:
        """Delete them; what is left of them then is a leak, too."""
        self._all(lambda row: self.stage.call("DELETE", f"/servers/{servers[row]}"), list(servers))
        self._rest()
        left = self._left()
        for row, uuid in servers.items():
            verdicts[row][1].extend(f"when it was deleted: {what}" for server, what in left if server in (uuid, ""))

    def _left(self) -> list[tuple[str, str]]:
        """What is left of servers that are deleted; "" for nobody knows whom."""
        return [(leak.server, leak.words) for leak in ledger.leaks(self.cloud, records.read(self.cloud))]

    def _until(self, uuids: Iterable[str], vm_state: str) -> None:
        wanted = set(uuids)

        def there() -> bool:
            idle = f"SELECT uuid FROM compute_instance WHERE vm_state = '{vm_state}' AND task_state IS NULL"
            return wanted <= {uuid for (uuid,) in self.cloud.ask("cell1", idle)}

        eventually(f"all are {vm_state}", there, REST_SECONDS)

    @staticmethod
    def _all(do: Callable[[Row], Any], rows: list[Row]) -> list[Any]:
        with ThreadPoolExecutor(ASKERS) as pool:
            return list(pool.map(do, rows))


@contextmanager
def opened(say: Say, kind: type[Rounds] = Rounds) -> Iterator[Rounds]:
    """Two hosts in a cell, so that a server has one place to go to; down and gone in the end."""
    cloud = Cloud(kind.driver, hosts_per_cell=2, **SLOTS)
    holds = cloud.directory / "holds"
    cloud.settings["STILLWATER_HOLD_AT"] = str(holds)
    place = Place(cloud, None)
    try:
        cloud.up()
        holds.mkdir()
        with Supervisor(place, say).watching() as supervisor:
            yield kind(cloud, supervisor, say)
    finally:
        if cloud.state.exists:
            cloud.down()
        for child in place.children:
            child.wait(10)
        cloud.end()
