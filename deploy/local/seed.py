"""The first content of a cloud: databases, cells, projects, flavors, images. It is seeded again after a change."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.local import cells, clients, envfiles
from deploy.local.manage_commands import manage
from deploy.local.output import Failed, hint, step
from deploy.local.processes import python
from deploy.local.state import CELL0, CELLS, DOMAINS, ROOT, StackState

BUILD_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Image:
    """One guest image: its file in the guests' folder, and the memory it needs in MiB."""

    name: str
    file: str
    disk_format: str
    min_ram: int


MICRO = Image("micro", "micro.img", "raw", 16)
LINUX = Image("tiny-linux", "tiny-linux.qcow2", "qcow2", 96)


def databases(state: StackState, values: dict[str, str]) -> None:
    """Create tables, cells, identity and flavors; no-op when nothing changed since the last seeding. Raises Failed."""
    if state.choices.seeded == _fingerprint(state, values):
        return
    with step("databases of the global side, cell0, cell1 and cell2"):
        manage(state, "migrate", "--no-input", "-v", "0")
        _create_cell(state, "cell0", CELL0, values, broker_url="")
        for cell in CELLS:
            _create_cell(state, cell, state.choices.cells[cell], values, state.broker_url(cell))
        is_done = _migrate_cells(state)
    with step("projects, users and flavors"):
        files = {user: str(clients.password_file(state, user)) for user in ("admin", "demo")}
        manage(
            state, "identity_bootstrap",
            "--admin-password-file", files["admin"], "--demo-password-file", files["demo"],
        )  # fmt: skip
        manage(state, "flavors_seed")
    if is_done:
        state.choices.seeded = _fingerprint(state, values)  # computed again: now the database files exist
        state.save()


def _migrate_cells(state: StackState) -> bool:
    """Return whether all cells were migrated. A cell whose database is lost later does not stop the others."""
    try:
        manage(state, "cell_migrate")
    except Failed:
        if not state.choices.seeded or not cells.away(state):
            raise
        return False
    return True


def _create_cell(state: StackState, name: str, uuid: str, values: dict[str, str], broker_url: str) -> None:
    """Create a cell. URLs have passwords and go by the environment: other users can read a command line."""
    secret = {
        "STILLWATER_NEW_CELL_DATABASE_URL": values[envfiles.database_variable(name)],
        "STILLWATER_NEW_CELL_BROKER_URL": broker_url,
    }
    words = ("--name", name, "--uuid", uuid, "--if-missing")
    manage(state, "cell_create", *words, what=f"creating {name}", extra=secret)


def _fingerprint(state: StackState, values: dict[str, str]) -> str:
    """Return a digest that changes with a migration, a seed command, a URL, or a lost database file."""
    digest = hashlib.sha256()
    sources = [*ROOT.glob("*/migrations/*.py"), *ROOT.glob("*/*/migrations/*.py")]
    sources += ROOT.glob("*/management/commands/*seed*.py")
    for file in sorted(sources):
        digest.update(file.read_bytes())
    for name, url in sorted(values.items()):
        if name.endswith("DATABASE_URL"):
            path = Path(url.removeprefix("sqlite:///"))
            digest.update(f"{url} {url.startswith('sqlite') and not path.exists()}".encode())
    digest.update(repr([state.broker_url(domain) for domain in DOMAINS]).encode())
    return digest.hexdigest()


class Guests:
    """The guest images: built in the background while everything else starts, then imported."""

    def __init__(self, state: StackState, directory: Path) -> None:
        self.state, self.directory = state, directory
        self.log = state.log("guests")
        self.micro_only = state.choices.driver == "fake"
        self._builder: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the build, unless every image was imported before."""
        if all(image.name in self.state.choices.images for image in self.wanted()):
            return
        command = [python(), "-m", "deploy.guests.build", str(self.directory)]
        command += ["--micro-only"] if self.micro_only else []
        environment = envfiles.process_environment(self.state, envfiles.global_file(self.state))
        with self.log.open("wb") as out:
            self._builder = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def wanted(self) -> tuple[Image, ...]:
        """Return the images of this cloud: simulated guests do not need Linux, but use it when it was built."""
        built = (self.directory / LINUX.file).is_file()
        return (MICRO,) if self.micro_only and not built else (MICRO, LINUX)

    def imported(self) -> None:
        """Wait for the build, then import the images that are not imported yet. Raises Failed."""
        if self._builder is None:
            return
        with step("guest images") as note:
            self._finish()
            for image in self.wanted():
                if image.name not in self.state.choices.images:
                    self._import(image)
            note.text = ", ".join(image.name for image in self.wanted())

    def _finish(self) -> None:
        assert self._builder is not None
        try:
            code = self._builder.wait(BUILD_SECONDS)
        except subprocess.TimeoutExpired as exc:
            self._builder.kill()
            raise Failed(f"building the guest images took longer than {BUILD_SECONDS} s", log=self.log) from exc
        if code == 0:
            return
        if not (self.directory / MICRO.file).is_file():
            raise Failed("could not build the guest images", log=self.log, advice="Mend it and run `make up` again.")
        # The boot-sector guest needs no download, so the cloud can start without the Linux guest.
        hint(f"the Linux guest could not be built, see {self.log}; only `micro` is there")
        self.micro_only = True

    def _import(self, image: Image) -> None:
        file = self.directory / image.file
        manage(
            self.state, "image_import", "--name", image.name, "--disk-format", image.disk_format,
            "--file", str(file), "--public", "--min-ram", str(image.min_ram), what=f"importing {image.name}",
        )  # fmt: skip
        self.state.choices.images.append(image.name)
        self.state.save()
