"""The state folder of one cloud: its paths, the choices of `up`, and the generated secrets.

Choices (driver, ports, cell uuids) and secrets are made once and kept, so a second `up` finds the same cloud.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import uuid
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy.local.output import Failed

ROOT = Path(__file__).resolve().parents[2]
CELLS = ("cell1", "cell2")
DOMAINS = ("global", *CELLS)  # failure domains: a Redis and a database each
DATABASES = ("global", "cell0", *CELLS)
CELL0 = "00000000-0000-0000-0000-000000000000"
FOLDERS = ("run", "log", "env", "secrets", "redis", "hosts", "images")
ADDRESSES = 180  # hosts of all clouds on one machine before their guests' ports collide


@dataclass
class StackOptions:
    """The choices that `up` made or was told."""

    driver: str = "libvirt"
    bind: str = "127.0.0.1"
    port: int = 8774
    redis_ports: dict[str, int] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    hosts_per_cell: int = 1
    slot: int = 0
    seeded: str = ""  # fingerprint of the last seeding
    images: list[str] = field(default_factory=list)  # those that were imported
    first_guest: bool = False  # it was booted once; after a delete it is not booted again


class StackState:
    """The state folder, and the choices kept in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.choices = StackOptions()
        self.exists = self._file.is_file()
        if self.exists:
            self.choices = StackOptions(**json.loads(self._file.read_text()))

    @classmethod
    def from_environment(cls) -> StackState:
        """Return the state in the folder STILLWATER_STATE, by default `var` in the clone. Raises Failed."""
        directory = Path(os.environ.get("STILLWATER_STATE") or ROOT / "var").resolve()
        if any(character.isspace() or character in "'\"%" for character in str(directory)):
            raise Failed(
                f"the state folder's path has a space, quote or percent sign: {directory}",
                advice="celery multi cannot take it; choose another: make up STILLWATER_STATE=/path",
            )
        state = cls(directory)
        state.refuse_foreign()
        return state

    def refuse_foreign(self) -> None:
        """Raise Failed when the folder is used for something else, before anything is written into it."""
        if self.exists or not self.directory.is_dir():
            return
        foreign = sorted({entry.name for entry in self.directory.iterdir()} - {*FOLDERS, "guests", "lock"})
        if foreign:
            raise Failed(
                f"{self.directory} holds other things ({foreign[0]}) and no cloud",
                advice="Choose a folder that is empty or does not exist: make up STILLWATER_STATE=/path",
            )

    def create(self) -> None:
        """Create the folders, for their owner only, and save the choices."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        for name in FOLDERS:
            self.path(name).mkdir(mode=0o700, exist_ok=True)
        for cell in CELLS:
            self.choices.cells.setdefault(cell, str(uuid.uuid4()))
        if not self.exists and self.directory != ROOT / "var":
            slots = ADDRESSES // len(self.hosts)
            self.choices.slot = 1 + zlib.crc32(str(self.directory).encode()) % slots
        self.save()

    def save(self) -> None:
        """Write the choices."""
        write_private(self._file, json.dumps(asdict(self.choices), indent=2) + "\n")
        self.exists = True

    @property
    def hosts(self) -> dict[str, str]:
        """The cell of every host: host1 in cell1, host2 in cell2, host3 in cell1, ..."""
        cells = CELLS * self.choices.hosts_per_cell
        return {f"host{number}": cell for number, cell in enumerate(cells, start=1)}

    def path(self, *parts: str) -> Path:
        """Return a path in the folder."""
        return self.directory.joinpath(*parts)

    def pidfile(self, name: str) -> Path:
        """Return the pidfile of the process of this name."""
        return self.path("run", f"{name}.pid")

    def log(self, name: str) -> Path:
        """Return the log file of the process of this name."""
        return self.path("log", f"{name}.log")

    def secret_file(self, name: str) -> Path:
        """Return the file of a generated password, which is created when it is missing."""
        file = self.path("secrets", name)
        if not file.exists():
            write_private(file, secrets.token_urlsafe(24) + "\n")
        return file

    def secret(self, name: str) -> str:
        """Return a generated password."""
        return self.secret_file(name).read_text().strip()

    def given_broker(self, domain: str) -> Path:
        """Return the file with the URL of a broker that `up` does not start. It is missing when `up` starts a Redis."""
        return self.path("secrets", f"broker-{domain}")

    @property
    def redis_domains(self) -> list[str]:
        """The failure domains whose broker is a Redis that `up` starts."""
        return [domain for domain in DOMAINS if not self.given_broker(domain).exists()]

    def broker_url(self, domain: str) -> str:
        """Return the broker URL of the global side or of a cell."""
        if domain not in self.redis_domains:
            return self.given_broker(domain).read_text().strip()
        return f"redis://:{self.secret('redis-' + domain)}@127.0.0.1:{self.choices.redis_ports[domain]}/0"

    @property
    def api_url(self) -> str:
        """The URL of the API for a client on this machine."""
        wildcard = self.choices.bind in ("0.0.0.0", "::")
        return f"http://{'127.0.0.1' if wildcard else self.choices.bind}:{self.choices.port}"

    @property
    def _file(self) -> Path:
        return self.directory / "cloud.json"


def write_private(file: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only from the first byte on. No change, no write."""
    if file.is_file() and file.read_text() == text:
        return
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    partial.replace(file)


def require(program: str, advice: str) -> str:
    """Return the path of a program. Raises Failed with `advice` when it is not installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = shutil.which(program, path=path)
    if not found:
        raise Failed(f"{program} is not installed", advice=advice)
    return found
