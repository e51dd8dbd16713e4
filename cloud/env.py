"""Every environment variable that Stillwater reads: name, type, default, meaning. No other module reads any.

A value comes from the environment of the process, else from its env file (`STILLWATER_ENV_FILE`, by default
`<state>/stillwater.env`), else from the default. A value of the wrong type stops the process with a sentence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import environ

ROOT = Path(__file__).resolve().parent.parent
_environ = environ.Env()


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable. `secret`: no message shows its value, and deploy tools do not copy it."""

    name: str
    kind: type
    default: Any
    meaning: str
    secret: bool = False
    least: float | None = None

    def read(self, values: Mapping[str, str] = os.environ) -> Any:
        """Return the value in its type. Stops the process when the value is not valid."""
        raw = values.get(self.name)
        if raw is None or (self.kind is Path and not raw):  # Path("") is the working directory
            return self.default
        try:
            value = _CASTS[self.kind](raw)
        except ValueError:
            shown = "its value" if self.secret else repr(raw)
            stop(f"{self.name}: {shown} is not a valid {self.kind.__name__}. {self.meaning}")
        if self.least is not None and value < self.least:
            stop(f"{self.name}: {value} is less than {self.least:g}. {self.meaning}")
        return value


def _boolean(raw: str) -> bool:
    word = raw.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(raw)


def _words(raw: str) -> list[str]:
    return [word.strip() for word in raw.split(",") if word.strip()]


_CASTS: dict[type, Any] = {
    str: str, int: int, float: float, bool: _boolean, list: _words, Path: Path,
}  # fmt: skip


def stop(sentence: str) -> NoReturn:
    """Stop the process because of its settings. The exit code tells systemd that a restart is useless."""
    sys.stderr.write(f"stillwater: {sentence}\n")
    sys.exit(os.EX_CONFIG)


def state_dir() -> Path:
    """Return the folder of all run-time state."""
    return Path(os.environ.get("STILLWATER_STATE") or ROOT / "var").resolve()


def load_env_file(into: type[environ.Env] = environ.Env) -> None:
    """Add the lines of the env file; variables that are set already win."""
    named = os.environ.get("STILLWATER_ENV_FILE")
    path = Path(named) if named else state_dir() / "stillwater.env"
    if path.is_file():
        into.read_env(path, overwrite=False)
    elif named:
        stop(f"STILLWATER_ENV_FILE names {path}, which does not exist. Unset it or create the file.")


# Defaults of STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT by role; units and manifests are derived from them.
GRACEFUL_SHUTDOWN_TIMEOUTS = {"host": 180.0, "conductor": 80.0, "scheduler": 80.0, "api": 80.0}

POWER_TRUTHS = ("hypervisor", "database", "nova", "record-only")  # of STILLWATER_POWER_TRUTH

V = Variable
VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        V("STILLWATER_STATE", Path, state_dir(), "Folder of all run-time state."),
        V("STILLWATER_ROLE", str, "manage", "What this process is: api, scheduler, conductor, host or manage."),
        V("STILLWATER_HOST", str, "", "Name of this host, conductor or scheduler; default: the machine's name."),
        V("STILLWATER_DEBUG", bool, default=False, meaning="Django's debug pages. Never in production."),
        V("STILLWATER_SECRET_KEY", str, "", "Signs sessions and image tickets; shared by API, scheduler, conductors.", secret=True),
        V("STILLWATER_TOKEN_KEYS", list, [], "Fernet keys of identity tokens, newest first, comma separated.", secret=True),
        V("STILLWATER_TOKEN_TTL", int, 3600 * 8, "Seconds an identity token is good for."),
        V("STILLWATER_PASSWORD_WORK_FACTOR", int, 1 << 14, "How slow passwords are to check, to whoever stole their hashes too: scrypt's N, a power of two. 16384 takes a login about 0.2 s of CPU.", least=1 << 10),
        V("STILLWATER_ALLOWED_HOSTS", list, ["127.0.0.1", "localhost", "[::1]"], "Host headers the API answers to."),
        V("STILLWATER_PUBLIC_URL", str, "http://127.0.0.1:8774", "Where clients and hosts reach the API; catalog and links."),
        V("STILLWATER_DATABASE_URL", str, "", "The global database; default: SQLite in the state folder.", secret=True),
        V("STILLWATER_BROKER_URL", str, "", "The global broker (scheduler).", secret=True),
        V("STILLWATER_CELL_UUID", str, "", "Own cell of a conductor or host."),
        V("STILLWATER_CELL_NAME", str, "", "Name of the own cell."),
        V("STILLWATER_CELL_DATABASE_URL", str, "", "Database of the own cell; all a host may know.", secret=True),
        V("STILLWATER_CELL_BROKER_URL", str, "", "Broker of the own cell; all a host may know.", secret=True),
        V("STILLWATER_NEW_CELL_DATABASE_URL", str, "", "Database of the cell that cell_create makes known.", secret=True),
        V("STILLWATER_NEW_CELL_BROKER_URL", str, "", "Broker of the cell that cell_create makes known.", secret=True),
        V("STILLWATER_API_PROCESSES", int, 0, "Processes of one API; 0: two a core, at most four. Each takes some 130 MB, and has eight threads or more.", least=0),
        V("STILLWATER_CELL_TIMEOUT", float, 2.0, "Seconds a cell has to answer, connecting included."),
        V("STILLWATER_CELL_RETRY_INTERVAL", float, 5.0, "Most seconds between looks at a cell that is down."),
        V("STILLWATER_LIST_RECORDS_BY_SKIPPING_DOWN_CELLS", bool, default=True, meaning="Lists of servers and migrations leave out cells that are down, where they cannot show their servers as UNKNOWN; off: such a list is 503 when something of its project is there (Nova: list_records_by_skipping_down_cells, which answers 500)."),
        V("STILLWATER_DRIVER", str, "libvirt", "Virt driver of a host: libvirt, ironic (bare metal) or fake."),
        V("STILLWATER_LIBVIRT_URI", str, "qemu:///system", "The libvirt daemon of this host."),
        V("STILLWATER_VIRT_TYPE", str, "auto", "kvm, qemu, or auto: kvm where it really works."),
        V("STILLWATER_HOST_STATE", Path, state_dir() / "host", "Folder of this host's disks and image cache."),
        V("STILLWATER_GUESTS_DIR", Path, None, "Folder of guests' disks; default: in STILLWATER_HOST_STATE. Hosts that share it, at the same path, need not copy disks to move servers."),
        V("STILLWATER_LIBVIRT_MIGRATION_URI", str, "", "This host's libvirt daemon as other hosts reach it, e.g. qemu+tls://host1/system; default: STILLWATER_LIBVIRT_URI."),
        V("STILLWATER_MIGRATION_ADDRESS", str, "", "Where this host takes memory and disks of servers that come to it; default: as its libvirt is set up."),
        V("STILLWATER_MIGRATION_BANDWIDTH", int, 0, "MiB/s of each server that leaves this host, its memory and its disk; 0 = as fast as it goes."),
        V("STILLWATER_LIBVIRT_OPEN_NETWORK", bool, default=False, meaning="Servers with networks: auto reach out through QEMU's user network, and with it every port of this host, its loopback too. Only where a firewall keeps QEMU's user from them."),
        V("STILLWATER_HOST_SLOTS", int, 8, "Steps a host runs at the same time."),
        V("STILLWATER_LONG_SLOTS", int, 4, "Long operations already begun that a host carries out at the same time: servers that leave it, snapshots for shelving, disks that are made anew; others wait. At least 1."),
        V("STILLWATER_CONDUCTOR_SLOTS", int, 4, "Steps a conductor runs at the same time."),
        V("STILLWATER_IRONIC_URL", str, "", "Ironic's API, for a host of bare metal, e.g. http://ironic:6385; default: where STILLWATER_IRONIC_CLOUD says."),
        V("STILLWATER_IRONIC_USERNAME", str, "", "For an Ironic with HTTP basic authentication; default: none."),
        V("STILLWATER_IRONIC_PASSWORD", str, "", "Goes with STILLWATER_IRONIC_USERNAME.", secret=True),
        V("STILLWATER_IRONIC_CLOUD", str, "", "The entry of clouds.yaml with the way to Ironic, for one behind Keystone."),
        V("STILLWATER_IRONIC_CONDUCTOR_GROUP", str, "", "Only nodes of this conductor group are this host's; default: all."),
        V("STILLWATER_IRONIC_SHARD", str, "", "Only nodes of this shard are this host's; default: all. Needs Ironic 21.2 (2023.1)."),
        V("STILLWATER_IRONIC_TIMEOUT", float, 60.0, "Seconds Ironic has for one request."),
        V("STILLWATER_IRONIC_DEPLOY_TIMEOUT", float, 1800.0, "Seconds a machine has to be deployed, rescued or given back."),
        V("STILLWATER_FAKE_ORDERS", str, "", "Delays and failures the fake driver is ordered to have."),
        V("STILLWATER_FAKE_VCPUS", int, 64, "CPUs the fake driver claims to have."),
        V("STILLWATER_FAKE_MEMORY_MB", int, 262144, "Memory the fake driver claims to have, in MiB."),
        V("STILLWATER_FAKE_DISK_GB", int, 10000, "Disk the fake driver claims to have, in GiB."),
        V("STILLWATER_FAKE_NODES", int, 1, "Nodes a fake host serves, each of that size."),
        V("STILLWATER_FAKE_RESOURCE_CLASS", str, "", "Makes each node of a fake host a machine of this class, and one server's."),
        V("STILLWATER_AVAILABILITY_ZONE", str, "nova", "Availability zone of this host."),
        V("STILLWATER_CPU_RATIO", float, 16.0, "Virtual CPUs sold per real one on this host."),
        V("STILLWATER_RAM_RATIO", float, 1.0, "Memory sold per real memory on this host."),
        V("STILLWATER_DISK_RATIO", float, 1.0, "Disk sold per real disk on this host."),
        V("STILLWATER_RESUME_GUESTS", bool, default=False, meaning="Start guests that should run when the host boots (Nova: resume_guests_state_on_host_boot)."),
        V("STILLWATER_POWER_TRUTH", str, "hypervisor", "Who is right when record and hypervisor disagree about a server's power: hypervisor, database, nova or record-only (docs/power-state.md)."),
        V("STILLWATER_SYNC_POWER_STATE_INTERVAL", float, 60.0, "Seconds between a host's looks at the power states of all its guests; 0 or less = only at its start (Nova: sync_power_state_interval)."),
        V("STILLWATER_HANDLE_LIFECYCLE_EVENTS", bool, default=True, meaning="Mind the hypervisor's own events; without them the looks by the clock find what changed (Nova: handle_virt_lifecycle_events)."),
        V("STILLWATER_POWER_FLAPS", int, 5, "How often a server is put back within STILLWATER_POWER_FLAP_WINDOW before it is left alone; 0 = always again.", least=0),
        V("STILLWATER_POWER_FLAP_WINDOW", int, 600, "Seconds a server that is left alone has to be quiet until it is put back again.", least=1),
        V("STILLWATER_REPORT_INTERVAL", float, 10.0, "Seconds between heartbeats."),
        V("STILLWATER_SERVICE_DOWN_TIME", float, 60.0, "Seconds without a heartbeat after which a service is down."),
        V("STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT", float, None, "Seconds a service has to end its work after SIGTERM; 0 = as long as it takes. Default: host 180, others 80."),
        V("STILLWATER_SUPERVISOR_TIMEOUT", float, None, "Seconds between SIGTERM and SIGKILL of what supervises this process; 0 = it never kills. Set by our units and manifests; systemd is asked."),
        V("STILLWATER_SERVICE_VERSION", int, None, "Speak as this older version while a cloud is upgraded; default: what the code is."),
        V("STILLWATER_NODE_DIR", str, "", "Folder of the env files `<HOST>.env` that `manage.py host` starts workers from; default: env in the state folder."),
        V("STILLWATER_KILL_AT", str, "", "For tests: a file that names the point at which this process kills itself."),
        V("STILLWATER_HOLD_AT", str, "", "For tests: a folder of files that name the point at which work for a server is held."),
        V("STILLWATER_RELAY_INTERVAL", float, 5.0, "Seconds between looks for work whose message was lost."),
        V("STILLWATER_RESEND_AFTER", float, 15.0, "Seconds a step may stay queued before it is sent again."),
        V("STILLWATER_SHUTDOWN_TIMEOUT", int, 60, "Seconds a guest has to shut down by itself; 0 = off at once.", least=0),
        V("STILLWATER_GUESTS_SHUTDOWN_TIMEOUT", int, 300, "Seconds all guests of a host have together when its machine goes down; 0 = each as long as its grace. Units are derived from it."),
        V("STILLWATER_SHUTDOWN_RETRY_INTERVAL", int, 10, "Seconds between signals to a guest that shuts down; at least 1.", least=1),
        V("STILLWATER_RESIZE_CONFIRM_WINDOW", int, 0, "Seconds after which a resize or cold migration confirms itself; 0 = never."),
        V("STILLWATER_RECLAIM_INSTANCE_INTERVAL", int, 0, "Seconds a deleted server is kept, off, and can be restored; 0 = not at all. The same for API and conductors (Nova: reclaim_instance_interval)."),
        V("STILLWATER_SHELVED_OFFLOAD_TIME", int, 0, "Seconds a shelved server stays on its host; 0 = offloaded at once, -1 = never. The same for API and conductors (Nova: shelved_offload_time)."),
        V("STILLWATER_MAX_ATTEMPTS", int, 3, "Hosts a boot tries before it fails."),
        V("STILLWATER_RAM_WEIGHT_MULTIPLIER", float, 1.0, "How much free memory speaks for a host; below 0: against it, so that hosts fill up one by one."),
        V("STILLWATER_CPU_WEIGHT_MULTIPLIER", float, 1.0, "How much free CPUs speak for a host."),
        V("STILLWATER_DISK_WEIGHT_MULTIPLIER", float, 1.0, "How much free disk speaks for a host."),
        V("STILLWATER_IO_OPS_WEIGHT_MULTIPLIER", float, -1.0, "How much operations in progress speak for a host; below 0: against it."),
        V("STILLWATER_SOFT_AFFINITY_WEIGHT_MULTIPLIER", float, 10.0, "How much other members of a soft-affinity group speak for a host."),
        V("STILLWATER_SOFT_ANTI_AFFINITY_WEIGHT_MULTIPLIER", float, 10.0, "How much other members of a soft-anti-affinity group speak against a host."),
        V("STILLWATER_MAX_LIMIT", int, 1000, "Most records one list answer holds."),
        V("STILLWATER_MAX_BODY", int, 1 << 20, "Bytes a request body may have (images excepted)."),
        V("STILLWATER_IMAGE_SIZE_LIMIT", int, 1 << 40, "Bytes an image may have."),
        V("STILLWATER_IMAGE_TICKET_TTL", int, 7 * 86400, "Seconds a host's permission to fetch or store one image lasts."),
        V("STILLWATER_QUOTA_COUNT_FROM", str, "api", "What a project holds is counted from the global side alone (api), or by asking the cells (cells), as Nova does: then nobody with servers in a cell that is down may boot, unless os_compute_api:servers:create:cell_down lets them."),
        V("STILLWATER_QUOTA_INSTANCES", int, 10, "Default quota: servers per project; -1 = unlimited."),
        V("STILLWATER_QUOTA_CORES", int, 20, "Default quota: virtual CPUs per project."),
        V("STILLWATER_QUOTA_RAM", int, 51200, "Default quota: memory per project in MiB."),
        V("STILLWATER_QUOTA_METADATA_ITEMS", int, 128, "Default quota: metadata keys per server."),
        V("STILLWATER_QUOTA_KEY_PAIRS", int, 100, "Default quota: key pairs per user."),
        V("STILLWATER_QUOTA_SERVER_GROUPS", int, 10, "Default quota: server groups per project."),
        V("STILLWATER_QUOTA_SERVER_GROUP_MEMBERS", int, 10, "Default quota: servers per server group."),
        V("STILLWATER_METRICS_PORT", int, 0, "Port a scheduler, conductor or host shows its counters on; 0 = none."),
        V("STILLWATER_METRICS_BIND", str, "127.0.0.1", "Address of that port."),
        V("STILLWATER_METRICS_TOKEN", str, "", "Bearer token of the API's /metrics; without one it answers to this machine alone.", secret=True),
        V("STILLWATER_LOG_LEVEL", str, "INFO", "DEBUG, INFO, WARNING or ERROR."),
        V("STILLWATER_LOG_FORMAT", str, "", "json or console; default: console for commands, json for processes."),
    )
}  # fmt: skip


def get(name: str) -> Any:
    """Return the value of a variable of the table above."""
    return VARIABLES[name].read()


def peek(name: str) -> Any:
    """As `get`, env file included, but leave the environment as it is: processes started later read it anew."""

    class Apart(environ.Env):
        ENVIRON: ClassVar[dict[str, str]] = dict(os.environ)

    load_env_file(Apart)
    return VARIABLES[name].read(Apart.ENVIRON)


# Variables that systemd sets for the processes it starts; they are no settings.
SYSTEMD = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "MANAGERPID")


def from_systemd(name: str) -> str:
    """Return a variable that systemd set for this process; "" when it set none."""
    assert name in SYSTEMD, name  # noqa: S101  the list above is complete
    return os.environ.get(name, "")


def invoking_user() -> str:
    """Return the user who called sudo; "" without sudo."""
    return os.environ.get("SUDO_USER", "")
