"""Rounds with real guests: where they are is what libvirt says, and how often they booted what they say themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import suppress
from functools import cached_property

from compute.virt.base import PowerState
from tests.chaos.records import Action, actions_of
from tests.live import books
from tests.live.cloud import eventually
from tests.matrix.judge import Seen
from tests.matrix.operations import HOST, ON, OPERATIONS
from tests.matrix.rounds import Rounds
from tests.matrix.rows import Row

BOOTED = r"boots=(\d+)\s+STILLWATER READY"  # it counts on its own disk
BOOT_SECONDS = 60
FOLDERS = ("guests", "arriving", "departed")


class RealRounds(Rounds):
    """The same on two libvirtd a cell."""

    driver = "libvirt"

    @cached_property
    def _micro(self) -> str:
        return str(self.cloud.sdk(admin=True).image.find_image("micro").id)

    def _image(self, row: Row) -> str:
        return self._micro

    def _earlier(self, uuid: str) -> int:
        """It hears its power button only when it is up."""
        eventually(f"{uuid} is up", lambda: self._boots(uuid), BOOT_SECONDS)
        return 0

    def _boots(self, uuid: str) -> int:
        answer = self.stage.call("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}})
        said = str(answer.json()["output"]) if answer.status_code == 200 else ""
        return int(([0, *re.findall(BOOTED, said)])[-1])

    def _look(self, servers: dict[Row, str], earlier: dict[Row, int]) -> dict[Row, Seen]:
        actions: dict[str, list[Action]] = defaultdict(list)
        for action in actions_of(self.cloud, "cell1"):
            actions[action.server].append(action)
        guests, claims = self._guests(), self._claims()
        found = {}
        for row, uuid in servers.items():
            shown = self.stage.show(uuid)
            resized = shown.get("status") == "VERIFY_RESIZE"
            wanted = set(HOST.values()) if resized else {shown.get("OS-EXT-SRV-ATTR:host")}
            leaks = [] if claims[uuid] == wanted else [f"room on {claims[uuid]}, and not on {wanted}"]
            done = actions[uuid][-1].message is None
            boots = self._boots_at_least(uuid, 1 + done * OPERATIONS[row.operation].done.effects.count(ON))
            found[row] = Seen(shown, actions[uuid], None, guests[uuid], leaks, boots - 1)
        return found

    def _boots_at_least(self, uuid: str, times: int) -> int:
        """A guest that was just turned on needs a moment to say so."""
        with suppress(AssertionError):
            eventually("it is up", lambda: self._boots(uuid) >= times, BOOT_SECONDS)
        return self._boots(uuid)

    def _guests(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for host in HOST.values():
            running = self.cloud.virsh(host, "list", "--state-running", "--uuid").split()
            for uuid in self.cloud.virsh(host, "list", "--all", "--uuid").split():
                found[uuid][host] = int(PowerState.RUNNING if uuid in running else PowerState.SHUTDOWN)
        return found

    def _claims(self) -> dict[str, set[str]]:
        held = "SELECT a.server_id, n.host FROM compute_allocation a JOIN compute_computenode n ON n.id = a.node_id"
        found: dict[str, set[str]] = defaultdict(set)
        for uuid, host in self.cloud.ask("cell1", held):
            found[uuid].add(host)
        return found

    def _left(self) -> list[tuple[str, str]]:
        found = []
        for host in HOST.values():
            kept = self.cloud.state.path("hosts", host, "state")
            found += [("", f"{host} keeps {entry.name}") for folder in FOLDERS for entry in kept.glob(f"{folder}/*")]
        needs = self.cloud.ask("cell1", "SELECT action_id, host FROM compute_hostneed")
        found += [("", f"action {action} needs {host}") for action, host in needs]
        try:
            books.check(self.cloud)
        except AssertionError as differ:
            found.append(("", str(differ)))
        return found
