"""The cloud that is harmed: two cells of two hosts, fake guests that take their time, databases of its own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from deploy.local.state import CELLS, DATABASES, ROOT
from tests.chaos.line import Line
from tests.live.cloud import Cloud
from tests.servers.postgres import Server

HOSTS_PER_CELL = 2
LIMITS = ("--instances", "2000", "--cores", "4000", "--ram", "4000000")
# whoever is harmed, the record is true soon; and not so soon that it hides an event that was lost
OFTEN = {"STILLWATER_SYNC_POWER_STATE_INTERVAL": "8"}
QUICK = {
    "spawn": 0.3, "destroy": 0.1, "power_on": 0.2, "power_off": 0.05, "reboot_hard": 0.3, "pause": 0.05,
    "unpause": 0.05, "suspend": 0.3, "resume": 0.3, "snapshot": 0.3, "shutdown": 0.2, "migrate_out": 0.3,
    "finish_migration": 0.1, "revert_migration": 0.1, "rescue": 0.2, "unrescue": 0.1,
}  # fmt: skip
SLOW = {
    "spawn": 3.0, "destroy": 1.0, "power_on": 1.5, "power_off": 0.5, "reboot_hard": 2.0, "pause": 0.5,
    "unpause": 0.5, "suspend": 2.5, "resume": 2.5, "snapshot": 3.0, "shutdown": 2.0, "migrate_out": 3.0,
    "finish_migration": 1.0, "revert_migration": 1.0, "rescue": 2.0, "unrescue": 1.0,
}  # fmt: skip
DIES = ("spawn", "destroy", "power_on", "power_off", "reboot_hard", "pause", "unpause", "suspend", "resume",
        "snapshot", "signal_shutdown", "pre_migrate", "migrate_out", "finish_migration", "revert_migration",
        "rescue", "unrescue")  # fmt: skip
DISK = b"\xeb\xfe".ljust(1 << 16, b"\0")


def faults(delays: dict[str, float], **more: str) -> dict[str, str]:
    """What an image faults its guests to do."""
    return {f"fake_{verb}_delay": str(seconds) for verb, seconds in delays.items()} | more


IMAGES = {
    "quick": faults(QUICK),
    "slow": faults(SLOW),
    "deaf": faults(QUICK, fake_shutdown_ignore="1", os_shutdown_timeout="2"),
    "reluctant": faults(QUICK, fake_spawn_fail="1"),  # does not run on the first host that tries
    "uncopied": faults(QUICK, fake_snapshot_fail="always"),
    "unmoved": faults(QUICK, fake_migrate_out_fail="always"),
    "unsettled": faults(QUICK, fake_finish_migration_fail="always"),
    "unreturned": faults(QUICK, fake_revert_migration_fail="always"),
    "sticky": faults(QUICK, fake_destroy_fail="1"),
    # a power button, and whoever presses it is heard; its tasks take so long that most of that comes during one
    "switched": faults(QUICK | {"power_on": 1.0, "reboot_hard": 1.0, "shutdown": 1.0, "snapshot": 2.0},
                       fake_power_update_event_accept="1"),
    **{f"die-{verb}": faults(QUICK, **{f"fake_{verb}_die": "1"}) for verb in DIES},
}


@dataclass
class Place:
    """A cloud, its PostgreSQL (None: SQLite files), and its images by name."""

    cloud: Cloud
    postgres: Server | None
    token: str = ""  # of the clients
    admin_token: str = ""
    images: dict[str, str] = field(default_factory=dict)
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)  # started again by us
    seconds: list[subprocess.Popen[bytes]] = field(default_factory=list)  # second workers of a name
    lines: dict[str, Line] = field(default_factory=dict)  # to the cells' databases, by name
    spilled: bool = False  # some book did not agree: the folder is kept

    @property
    def names(self) -> list[str]:
        """Every process that may be harmed."""
        return [*self.cloud.pids(), *(["postgres"] if self.postgres else [])]


@contextmanager
def opened(*, sqlite: bool, root: Path = ROOT) -> Iterator[Place]:
    """Up, with room for everybody and all images; down in the end, and gone unless something was spilled.

    `root`: the source tree that it is first started from.
    """
    server = None if sqlite else Server()
    lines = {f"line-{cell}": Line(server.port) for cell in CELLS} if server else {}
    settings = OFTEN | (_databases(server, lines) if server else {})
    cloud = Cloud("fake", hosts_per_cell=HOSTS_PER_CELL, root=root, **settings)
    place = Place(cloud, server, lines=lines)
    try:
        cloud.up()
        _furnish(place)
        yield place
    finally:
        if server and server.process and server.process.poll() is not None:
            server.start()
        for second in place.seconds:
            second.kill()
        cloud.down()
        for child in [*place.children, *place.seconds]:
            _end(child)
        for line in lines.values():
            line.close()
        if server:
            server.stop()
    if place.spilled:
        return
    cloud.end()
    if server:
        server.remove()


def _end(child: subprocess.Popen[bytes]) -> None:
    """`down` has ended it; nothing is left of one that is there all the same."""
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(10)


def _databases(server: Server, lines: dict[str, Line]) -> dict[str, str]:
    """The variables with their URLs. A cell's is reached through its line by all processes."""
    server.start()
    with psycopg.connect(f"{server.url}/postgres", autocommit=True) as connection:
        for name in DATABASES:
            connection.execute(f"CREATE DATABASE {'stillwater' if name == 'global' else name}")
    variables = {name: f"STILLWATER_{name.upper()}_DATABASE_URL" for name in DATABASES}
    variables["global"] = "STILLWATER_DATABASE_URL"
    return {variables[name]: f"{_url(server, lines.get(f'line-{name}'))}/{name if name != 'global' else 'stillwater'}"
            for name in DATABASES}  # fmt: skip


def _url(server: Server, line: Line | None) -> str:
    return server.url.replace(f":{server.port}", f":{line.port}") if line else server.url


def _furnish(place: Place) -> None:
    place.cloud.do("quota", "set", *LIMITS, "demo", admin=True)
    place.token = place.cloud.sdk().auth_token
    admin = place.cloud.sdk(admin=True)
    place.admin_token, service = admin.auth_token, admin.image
    for name, properties in IMAGES.items():
        made = service.create_image(
            name, data=DISK, md5=hashlib.md5(DISK).hexdigest(), disk_format="raw", container_format="bare",
            visibility="public", validate_checksum=False, **properties,
        )  # fmt: skip
        place.images[name] = made.id
