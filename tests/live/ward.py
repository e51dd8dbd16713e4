"""A ward of real guests, each with its own way to take a power button; and what is on record of how they went.

ward.made(Micro("deaf", ignore_acpi=True), os_shutdown_timeout="20")   an image of such guests
ward.admit("a", image)       asks for one; ward.ids["a"]
ward.watch("a")              waits until it runs, and has it watched
ward.actions(uuid)           the action log of a server
ward.words(uuid)             how its guest's power off ended, as the action log has it
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from deploy.guests import build, micro
from deploy.guests.micro import Micro
from deploy.local.state import ROOT
from tests.live.cloud import Cloud, eventually
from tests.live.stage import Stage
from tests.live.vigil import Vigil


def forced(words: str) -> tuple[int, int]:
    """Of a guest that did not obey: after how many seconds it was forced off, and how often it was signalled."""
    said = re.search(r"(?:forced off|fell back to a hard reboot) after (\d+) s, (\d+) signals? \(acpi\)", words)
    assert said, words
    return int(said[1]), int(said[2])


class Ward(Stage):
    """One real cloud, and the admin who works on it."""

    def __init__(self, cloud: Cloud, vigil: Vigil, prefix: str) -> None:
        super().__init__(cloud)
        self.vigil, self.prefix = vigil, prefix
        self.ids: dict[str, str] = {}

    def made(self, kind: Micro, **properties: Any) -> str:
        """An image of boot-sector guests that behave like this."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "micro.img")
            micro.build(file, kind)
            return self._imported(kind.name, file, "raw", properties)

    def agents(self, **properties: Any) -> str:
        """An image of guests that obey their agent, and nothing else."""
        properties = {"hw_qemu_guest_agent": "yes"} | properties
        return self._imported("agent", build.with_agent(ROOT / "var/guests"), "qcow2", properties)

    def admit(self, name: str, image: str, host: str = "", metadata: dict[str, str] | None = None, **more: Any) -> str:
        """Ask for a guest; its id."""
        self.ids[name] = self.order(image, host, f"{self.prefix}-{name}", metadata=metadata or {}, **more)
        return self.ids[name]

    def watch(self, *names: str) -> None:
        """Wait until they run, and look after them."""
        for name in names:
            self.wait(self.ids[name], "ACTIVE")
            self.vigil.watch(self.ids[name], self.show(self.ids[name])["OS-EXT-SRV-ATTR:host"])

    def are_ready(self, *names: str) -> None:
        """Wait until their operating systems hear."""
        eventually(f"{names} are ready", lambda: all(self.vigil[self.ids[name]].ready for name in names))

    def console(self, uuid: str) -> str:
        """What its guest said."""
        return str(self.call("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}}).json()["output"])

    def virsh(self, name: str, word: str) -> None:
        """What somebody does to its guest behind our back."""
        uuid = self.ids[name]
        self.cloud.virsh(self.show(uuid)["OS-EXT-SRV-ATTR:host"], word, uuid)

    def actions(self, uuid: str) -> list[dict[str, Any]]:
        """The action log of a server with its events, oldest first."""
        path = f"/servers/{uuid}/os-instance-actions"
        newest_first = self.call("GET", path).json()["instanceActions"]
        found = [self.call("GET", f"{path}/{action['request_id']}").json() for action in newest_first]
        return [dict(one["instanceAction"]) for one in reversed(found)]

    def words(self, uuid: str) -> str:
        """What the newest action says of how it went: of its first event that says something about a guest."""
        said = [event["details"] or "" for event in self.actions(uuid)[-1]["events"]]
        return next((words for words in said if "signal" in words or "forced" in words), "; ".join(said))

    def empty(self) -> None:
        """Delete what was admitted here, and its images."""
        for uuid in self.ids.values():
            assert self.call("DELETE", f"/servers/{uuid}?shutdown_type=HARD").status_code in (204, 404)
        for uuid in self.ids.values():
            self.wait(uuid, "DELETED")
        for image in self._images.values():
            self._sdk.image.delete_image(image)

    def _imported(self, kind: str, file: Path, disk_format: str, properties: dict[str, Any]) -> str:
        name = "-".join([self.prefix, kind, *properties.values()])
        format_of = {"disk_format": disk_format, "container_format": "bare"}
        made = self._sdk.image.create_image(
            name, filename=str(file), validate_checksum=False, **format_of, **properties
        )  # fmt: skip
        self._images[name] = made.id
        return str(made.id)
