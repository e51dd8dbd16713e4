"""What is on record in the cloud of three machines, and on its hypervisors, compared with what clients asked for.

The kinds of findings are those of tests/chaos/ledger.py. What a libvirt host did is not recorded anywhere, so "double"
is a guest on two hosts, or a request that is recorded twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.chaos import ledger, records
from tests.chaos.ledger import Finding
from tests.chaos.records import Records
from tests.chaos.story import Asked
from tests.live.cloud import eventually
from tests.machines.machine import Machine
from tests.machines.site import Site

CELLS = ("cell0", "cell1")
REST_SECONDS = 240.0
POWER = {"running": 1, "paused": 3, "shut off": 4}  # of virsh
LIST = "for one in $(virsh -q list --all --uuid); do echo $one $(virsh -q domstate $one); done"
OPEN = "SELECT count(*) FROM compute_instanceaction WHERE finished_at IS NULL"
BUSY = "SELECT count(*) FROM compute_instance WHERE NOT deleted AND task_state IS NOT NULL"


class Books:
    """The databases of a site, read as its operator could: over TLS, with a certificate of the control machine."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def ask(self, database: str, question: str) -> list[tuple[Any, ...]]:
        """Rows of a database: global, cell0, cell1."""
        files, own = self.site.control.root / "etc/stillwater/ca/control", database == "cell1"
        name = "stillwater" if database == "global" else database
        conninfo = make_conninfo(
            host=self.site.control.address, dbname=name,
            user="cell1" if own else "stillwater", sslmode="verify-full", sslrootcert=str(files / "ca.crt"),
            password=self.site.secret("cell1-password" if own else "global-password"),
            sslcert=str(files / "control.crt"), sslkey=str(files / "control.key"), connect_timeout=10,
        )  # fmt: skip
        with psycopg.connect(conninfo) as connection:
            return connection.execute(question.encode()).fetchall()

    def unfinished(self) -> int:
        """Operations in progress, and boots that wait."""
        waiting = self.ask("global", "SELECT count(*) FROM cells_buildrequest")[0][0]
        return int(waiting) + sum(self.ask(cell, OPEN)[0][0] + self.ask(cell, BUSY)[0][0] for cell in CELLS)

    def rest(self) -> None:
        """Wait until nothing is in progress; not longer: what is stuck then, `findings` will say."""
        try:
            eventually("nothing is in progress", lambda: not self.unfinished(), REST_SECONDS, 2)
        except AssertionError as late:
            print(f"  {late}", flush=True)

    def guests(self, machine: Machine) -> dict[str, int]:
        """The guests of a host: power state by UUID."""
        lines = machine.run(LIST).splitlines()
        return {uuid: POWER.get(state, 0) for uuid, _, state in (line.partition(" ") for line in lines)}

    def read(self) -> Records:
        """Everything, once."""
        servers, actions, images = defaultdict(list), defaultdict(list), defaultdict(list)
        for cell in CELLS:
            for server in records.servers_of(self, cell):  # type: ignore[arg-type]  it asks nothing else
                servers[server.uuid].append(server)
            for action in records.actions_of(self, cell):  # type: ignore[arg-type]
                actions[action.server].append(action)
        for name, status in self.ask("global", "SELECT name, status FROM images_image WHERE status <> 'deleted'"):
            images[name].append(status)
        waiting = {uuid for (uuid,) in self.ask("global", "SELECT server_id FROM cells_buildrequest")}
        guests = {one.name: self.guests(one) for one in self.site.hosts}
        return Records(servers, actions, {}, guests, waiting, images)

    def findings(self, asked: list[Asked], prefix: str) -> list[Finding]:
        """What must not be: lost, double, stuck, leaked."""
        found = self.read()
        ours = {uuid for uuid, rows in found.servers.items() if rows[0].name.startswith(f"{prefix}-")}
        wrong = ledger.answers(found, asked) + ledger.recorded_twice(found)
        for uuid in sorted(ours):
            wrong += ledger.of_server(uuid, found)
            wrong += [Finding("stuck", uuid, f"{one.name} ({one.request_id}) has not ended")
                      for one in found.actions.get(uuid, []) if one.finished is None]  # fmt: skip
            wrong += [Finding("lost", uuid, f"{one.name} ({one.request_id}) failed without a reason")
                      for one in found.actions.get(uuid, []) if one.message == "Error" and not one.outcome]  # fmt: skip
        return wrong + self._leaked(found)

    def _leaked(self, found: Records) -> list[Finding]:
        living = {row.uuid for rows in found.servers.values() for row in rows if not row.deleted}
        wrong = [Finding("leaked", uuid, f"a guest on {host} without a living server")
                 for host, guests in found.guests.items() for uuid in set(guests) - living]  # fmt: skip
        held = {uuid for (uuid,) in self.ask("cell1", "SELECT server_id FROM compute_allocation")}
        wrong += [Finding("leaked", uuid, "an allocation of no living server") for uuid in held - living]
        wrong += [Finding("leaked", "", words) for words in ledger.sums(self, "cell1")]  # type: ignore[arg-type]
        mappings = "SELECT server_id FROM cells_instancemapping WHERE queued_for_delete IS NOT TRUE"
        charged = {uuid for (uuid,) in self.ask("global", mappings)}
        return wrong + [Finding("leaked", uuid, "the quota and the records differ") for uuid in charged ^ living]
