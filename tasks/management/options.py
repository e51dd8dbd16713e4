"""The options of `manage.py host`, and the services they name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.core.management.base import OutputWrapper

from compute.models.host import COMPUTE
from tasks import worker_process
from tasks.management import snapshot
from tasks.management.outcome import CommandRefused
from tasks.management.output import Output
from tasks.management.snapshot import ServiceLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommand:
    """The options of one command line."""

    output: Output
    errors: OutputWrapper
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
    limit: int = 100  # of a list
    marker: str = ""
    everything: bool = False  # conductors and schedulers too

    def locate(self, *, compute: bool = False) -> list[ServiceLocation]:
        """Return where the named services are. `compute`: only compute hosts are allowed. Raises CommandRefused."""
        found, unknown, silent = snapshot.find_locations(self.names, self.env_dir, self.state)
        if unknown:
            hint = f" {', '.join(silent)} did not answer, and may have it." if silent else ""
            raise CommandRefused(f"There is no host {', '.join(unknown)}.{hint} See: manage.py host list --all")
        others = [one.name for one in found if compute and one.binary != COMPUTE]
        if others:
            raise CommandRefused(f"{', '.join(others)}: only compute hosts have servers.")
        return found

    def locate_processes(self, *, compute: bool = False) -> list[ServiceLocation]:
        """As `locate`, for workers that this command supervises on this machine. Raises CommandRefused for others."""
        if any(character.isspace() or character in "'\"%" for character in str(self.state)):
            wrong = "celery multi cannot take a state folder with a space, quote or percent sign"
            raise CommandRefused(f"{wrong}: {self.state}")
        bad = [name for name in self.names if not worker_process.NAME.fullmatch(name)]
        if bad:
            raise CommandRefused(f"{bad[0]!r} is not the name of a host: letters, digits, dots, dashes, underscores.")
        unknown = [name for name in self.names if snapshot.find_node(name, self.env_dir, self.state) is None]
        if unknown:
            raise CommandRefused(
                f"{', '.join(unknown)}: no worker of this machine has that name, for {self.env_dir} has no env "
                "file <HOST>.env that you may read, with its STILLWATER_ROLE and STILLWATER_HOST. Name its folder "
                "with --env-dir or STILLWATER_NODE_DIR, or go to the machine of the host."
            )
        found = self.locate(compute=compute)
        for one in found:  # under another supervisor there would be two, or it would start again
            pid = None if one.pid or one.node is None else worker_process.pid_under_other_supervisor(one.node)
            if pid and one.node:
                raise CommandRefused(
                    f"{one.name} runs (pid {pid}), and was not started by this command: it has no pidfile in "
                    f"{one.node.run}. Use what started it (systemctl stop stillwater-host@{one.name}), or drain it."
                )
        return found
