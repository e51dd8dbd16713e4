"""The options of `manage.py host`, and how it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks import worker_process
from tasks.management import snapshot
from tasks.management.output import Output
from tasks.management.snapshot import ServiceLocation
from tasks.management.wait import USAGE
from tasks.worker_process import WorkerNode


class CommandRefused(Exception):
    """Ends the command with this sentence and this exit code."""

    def __init__(self, sentence: str, code: int = USAGE) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """The options of one command line."""

    screen: Output
    names: tuple[str, ...] = ()
    state: Path  # the state folder of this machine's processes
    env_dir: Path
    interval: float = 1.0
    patience: float = 30.0
    seconds: float | None = None  # None: not given
    reason: str = ""
    then_exit: bool = False
    no_wait: bool = False
    dry_run: bool = False
    force: bool = False
    parallel: int = 0  # 0: not given
    migrate: bool = False  # its servers leave first
    stay: bool = False  # they stay, whatever was requested before
    bring_back: bool = False
    shutdown_guests: bool = False  # they are shut down with their host

    def places(self) -> list[ServiceLocation]:
        """Return where the named services are. Raises CommandRefused for an unknown name."""
        found, unknown, silent = snapshot.find(self.names, self.env_dir, self.state / "run", self.state / "log")
        if unknown:
            away = f" {', '.join(silent)} did not answer, and may know it." if silent else ""
            raise CommandRefused(f"There is no host {', '.join(unknown)}.{away} See: manage.py host list --all")
        return found

    def local(self) -> list[ServiceLocation]:
        """As `places`, for workers of this machine only. Raises CommandRefused for any other."""
        if any(character.isspace() or character in "'\"%" for character in str(self.state)):
            wrong = "celery multi cannot take a state folder with a space, quote or percent sign"
            raise CommandRefused(f"{wrong}: {self.state}")
        found = [(name, self._node(name)) for name in dict.fromkeys(self.names)]
        strangers = [name for name, process in found if process is None]
        if strangers:
            raise CommandRefused(
                f"{', '.join(strangers)}: no worker of this machine has that name, for {self.env_dir} has no env "
                "file <HOST>.env that you may read, with its STILLWATER_ROLE and STILLWATER_HOST. Say where it is "
                "with --env-dir or STILLWATER_NODE_DIR, or go to the machine of the host."
            )
        return self.places()

    def _node(self, name: str) -> WorkerNode | None:
        if not worker_process.NAME.fullmatch(name):
            raise CommandRefused(f"{name!r} is not the name of a host: letters, digits, dots, dashes and underscores.")
        return snapshot.local(name, self.env_dir, self.state / "run", self.state / "log")


def worst(codes: Sequence[int]) -> int:
    """Return the command's exit code, the highest of its hosts' codes."""
    return max(codes, default=0)
