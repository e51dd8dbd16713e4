"""Every environment variable that Stillwater reads: name, type, default, meaning. No other module reads any.

A value comes from the environment of the process, else from its env file (`STILLWATER_ENV_FILE`, by default
`<state>/stillwater.env`), else from the default. A value of the wrong type stops the process with a sentence.
Installed from a wheel, the state folder is /var/lib/stillwater and the env file /etc/stillwater/stillwater.env.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import environ

ROOT = Path(__file__).resolve().parent.parent  # the clone; site-packages, where a wheel is installed
IS_CLONE = (ROOT / "manage.py").is_file()  # no wheel contains it
ETC, VAR_LIB = Path("/etc/stillwater"), Path("/var/lib/stillwater")
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
    return Path(os.environ.get("STILLWATER_STATE") or (ROOT / "var" if IS_CLONE else VAR_LIB)).resolve()


def load_env_file(into: type[environ.Env] = environ.Env) -> None:
    """Add the lines of the env file; variables that are set already win."""
    named = os.environ.get("STILLWATER_ENV_FILE")
    of_machine = not IS_CLONE and not os.environ.get("STILLWATER_STATE")
    path = Path(named) if named else (ETC if of_machine else state_dir()) / "stillwater.env"
    if path.is_file():
        if not os.access(path, os.R_OK):  # environ would only log it
            stop(f"{path} cannot be read by this user. Run this as its owner.")
        into.read_env(path, overwrite=False)
    elif named:
        stop(f"STILLWATER_ENV_FILE names {path}, which does not exist. Unset it or create the file.")


# Defaults of STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT by role; units and manifests are derived from them.
GRACEFUL_SHUTDOWN_TIMEOUTS = {"host": 180.0, "conductor": 80.0, "scheduler": 80.0, "api": 80.0}

DRAIN_LIVE_MIGRATIONS = ("wait", "force", "abort")  # of STILLWATER_DRAIN_LIVE_MIGRATIONS
POWER_AUTHORITIES = ("hypervisor", "database", "nova", "record-only")  # of STILLWATER_POWER_TRUTH

V = Variable
VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        V("STILLWATER_STATE", Path, state_dir(), "Folder of all run-time state."),
        V("STILLWATER_ROLE", str, "manage", "Role of this process: api, scheduler, conductor, host or manage."),
        V("STILLWATER_HOST", str, "", "Name of this host, conductor or scheduler; default: the machine's host name."),
        V("STILLWATER_DEBUG", bool, default=False, meaning="Show Django's debug pages. Never in production."),
        V("STILLWATER_SECRET_KEY", str, "", "Signs sessions and image tickets; shared by API, scheduler, conductors.", secret=True),
        V("STILLWATER_TOKEN_KEYS", list, [], "Fernet keys of identity tokens, newest first, comma separated.", secret=True),
        V("STILLWATER_TOKEN_TTL", int, 3600 * 8, "Lifetime of an identity token, in seconds."),
        V("STILLWATER_PASSWORD_WORK_FACTOR", int, 1 << 14, "Cost of a password hash: scrypt's N, a power of two. With 16384 a login takes about 0.2 s of CPU.", least=1 << 10),
        V("STILLWATER_ALLOWED_HOSTS", list, ["127.0.0.1", "localhost", "[::1]"], "Host headers that the API accepts."),
        V("STILLWATER_PUBLIC_URL", str, "http://127.0.0.1:8774", "URL at which clients and hosts reach the API; used in the catalog and in links."),
        V("STILLWATER_DATABASE_URL", str, "", "The global database; default: SQLite in the state folder.", secret=True),
        V("STILLWATER_BROKER_URL", str, "", "The global broker (scheduler).", secret=True),
        V("STILLWATER_CELL_UUID", str, "", "Cell of this conductor or host."),
        V("STILLWATER_CELL_NAME", str, "", "Name of that cell."),
        V("STILLWATER_CELL_DATABASE_URL", str, "", "Database of that cell; the only database a host has access to.", secret=True),
        V("STILLWATER_CELL_BROKER_URL", str, "", "Broker of that cell; the only broker a host has access to.", secret=True),
        V("STILLWATER_NEW_CELL_DATABASE_URL", str, "", "Database of the cell that cell_create registers.", secret=True),
        V("STILLWATER_NEW_CELL_BROKER_URL", str, "", "Broker of the cell that cell_create registers.", secret=True),
        V("STILLWATER_TLS_CA", Path, None, "File of the certificate authority (PEM; several may follow each other). With it every database, broker and image server is verified: PostgreSQL with sslmode=verify-full (docs/tls.md)."),
        V("STILLWATER_TLS_CERT", Path, None, "File of this machine's certificate, which its processes show to databases, brokers and clients."),
        V("STILLWATER_TLS_KEY", Path, None, "File of its private key, readable for the account of the process alone."),
        V("STILLWATER_API_TLS", bool, None, "The API serves https with STILLWATER_TLS_CERT and _KEY; default: where these are set and STILLWATER_PUBLIC_URL is https://. Off: a proxy on its machine terminates TLS."),
        V("STILLWATER_API_PROCESSES", int, 0, "Processes of one API; 0: two per core, at most four. Each uses about 130 MB and has at least eight threads.", least=0),
        V("STILLWATER_CELL_TIMEOUT", float, 2.0, "Seconds to wait for the answer of a cell, connecting included."),
        V("STILLWATER_CELL_RETRY_INTERVAL", float, 5.0, "Longest pause between probes of a cell that is down, in seconds."),
        V("STILLWATER_LIST_RECORDS_BY_SKIPPING_DOWN_CELLS", bool, default=True, meaning="Lists of servers and migrations omit cells that are down where they cannot show their servers as UNKNOWN. Off: such a list is 503 when the project has records there (Nova: list_records_by_skipping_down_cells, which answers 500)."),
        V("STILLWATER_DRIVER", str, "libvirt", "Virt driver of a host: libvirt, ironic (bare metal) or fake."),
        V("STILLWATER_LIBVIRT_URI", str, "qemu:///system", "URI of this host's libvirt daemon."),
        V("STILLWATER_VIRT_TYPE", str, "auto", "kvm, qemu, or auto: kvm where it works."),
        V("STILLWATER_HOST_STATE", Path, state_dir() / "host", "Folder of this host's disks and image cache."),
        V("STILLWATER_GUESTS_DIR", Path, None, "Folder of guests' disks; default: in STILLWATER_HOST_STATE. Hosts that share it at the same path migrate servers without copying disks."),
        V("STILLWATER_LIBVIRT_MIGRATION_URI", str, "", "URI at which other hosts reach this host's libvirt daemon, e.g. qemu+tls://host1/system; default: STILLWATER_LIBVIRT_URI."),
        V("STILLWATER_MIGRATION_ADDRESS", str, "", "Address at which this host receives memory and disks of migrating servers; default: libvirt's configuration."),
        V("STILLWATER_MIGRATION_BANDWIDTH", int, 0, "Bandwidth of each migration from this host, memory and disk, in MiB/s; 0 = unlimited."),
        V("STILLWATER_MIGRATION_TLS", bool, None, "Send memory and disks of live migrations to and from this host with QEMU's TLS; default: where STILLWATER_TLS_CERT is set. Needs the certificates in /etc/pki/qemu of both hosts (docs/tls.md)."),
        V("STILLWATER_LIBVIRT_OPEN_NETWORK", bool, default=False, meaning="Connect servers with networks: auto to QEMU's user network. Through it they reach every port of this host, including loopback: enable only where a firewall blocks QEMU's user."),
        V("STILLWATER_HOST_SLOTS", int, 8, "Steps a host runs in parallel."),
        V("STILLWATER_LONG_SLOTS", int, 4, "Long operations a host runs in parallel: migrations away, snapshots for shelving, rebuilds of disks; others wait. At least 1."),
        V("STILLWATER_CONDUCTOR_SLOTS", int, 4, "Steps a conductor runs in parallel."),
        V("STILLWATER_IRONIC_URL", str, "", "URL of Ironic's API, for a bare metal host, e.g. http://ironic:6385; default: from STILLWATER_IRONIC_CLOUD."),
        V("STILLWATER_IRONIC_USERNAME", str, "", "User name for an Ironic with HTTP basic authentication; default: none."),
        V("STILLWATER_IRONIC_PASSWORD", str, "", "Password for STILLWATER_IRONIC_USERNAME.", secret=True),
        V("STILLWATER_IRONIC_CLOUD", str, "", "Entry of clouds.yaml for an Ironic behind Keystone."),
        V("STILLWATER_IRONIC_CONDUCTOR_GROUP", str, "", "Manage only nodes of this conductor group; default: all."),
        V("STILLWATER_IRONIC_SHARD", str, "", "Manage only nodes of this shard; default: all. Needs Ironic 21.2 (2023.1)."),
        V("STILLWATER_IRONIC_TIMEOUT", float, 60.0, "Timeout of one request to Ironic, in seconds."),
        V("STILLWATER_IRONIC_DEPLOY_TIMEOUT", float, 1800.0, "Timeout of deploying, rescuing or undeploying a machine, in seconds."),
        V("STILLWATER_FAKE_FAULTS", str, "", "Delays and failures to inject into the fake driver."),
        V("STILLWATER_FAKE_VCPUS", int, 64, "CPUs that the fake driver reports."),
        V("STILLWATER_FAKE_MEMORY_MB", int, 262144, "Memory that the fake driver reports, in MiB."),
        V("STILLWATER_FAKE_DISK_GB", int, 10000, "Disk that the fake driver reports, in GiB."),
        V("STILLWATER_FAKE_NODES", int, 1, "Nodes of a fake host, each of that size."),
        V("STILLWATER_FAKE_RESOURCE_CLASS", str, "", "Make each node of a fake host a bare metal machine of this resource class."),
        V("STILLWATER_AVAILABILITY_ZONE", str, "nova", "Availability zone of this host."),
        V("STILLWATER_CPU_RATIO", float, 16.0, "CPU allocation ratio of this host."),
        V("STILLWATER_RAM_RATIO", float, 1.0, "Memory allocation ratio of this host."),
        V("STILLWATER_DISK_RATIO", float, 1.0, "Disk allocation ratio of this host."),
        V("STILLWATER_RESUME_GUESTS", bool, default=False, meaning="Start guests that should run when the host boots (Nova: resume_guests_state_on_host_boot)."),
        V("STILLWATER_POWER_TRUTH", str, "hypervisor", "Power authority: which side wins when record and hypervisor disagree about a server's power state: hypervisor, database, nova or record-only (docs/power-state.md)."),
        V("STILLWATER_SYNC_POWER_STATE_INTERVAL", float, 60.0, "Seconds between power syncs of all guests of a host; 0 or less = only at the start of the worker (Nova: sync_power_state_interval)."),
        V("STILLWATER_HANDLE_LIFECYCLE_EVENTS", bool, default=True, meaning="Handle lifecycle events of the hypervisor; without them only the power sync finds changes (Nova: handle_virt_lifecycle_events)."),
        V("STILLWATER_POWER_FLAPS", int, 5, "How often the power state of a server is restored within STILLWATER_POWER_FLAP_WINDOW before restoring is suspended; 0 = unlimited.", least=0),
        V("STILLWATER_POWER_FLAP_WINDOW", int, 600, "Seconds without a change after which a suspended server is restored again.", least=1),
        V("STILLWATER_REPORT_INTERVAL", float, 10.0, "Seconds between heartbeats."),
        V("STILLWATER_SERVICE_DOWN_TIME", float, 60.0, "Seconds without a heartbeat after which a service is down."),
        V("STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT", float, None, "Seconds a service has to finish its work after SIGTERM; 0 = no limit. Default: host 180, others 80."),
        V("STILLWATER_DRAIN_LIVE_MIGRATIONS", str, "wait", "What a drain does with a live migration that would not end before the drain's deadline: wait; force it through (post-copy, or the guest is paused); abort it (docs/graceful-shutdown.md)."),
        V("STILLWATER_SUPERVISOR_TIMEOUT", float, None, "Seconds between SIGTERM and SIGKILL by this process's supervisor; 0 = no SIGKILL. Set by the units and manifests; systemd is queried."),
        V("STILLWATER_SERVICE_VERSION", int, None, "Act as this older version during an upgrade; default: the version of the code."),
        V("STILLWATER_NODE_DIR", str, "", "Folder of the env files `<HOST>.env` for workers that `manage.py host` starts; default: env in the state folder."),
        V("STILLWATER_KILL_AT", str, "", "For tests: file that names the failpoint at which this process kills itself."),
        V("STILLWATER_HOLD_AT", str, "", "For tests: folder of files that name the failpoint at which work for a server is held."),
        V("STILLWATER_RELAY_INTERVAL", float, 5.0, "Seconds between runs of the relay, which resends lost messages."),
        V("STILLWATER_RESEND_AFTER", float, 15.0, "Seconds a step may stay queued before its message is sent again."),
        V("STILLWATER_SHUTDOWN_TIMEOUT", int, 60, "Seconds a guest gets to shut down (grace period); 0 = power is cut at once.", least=0),
        V("STILLWATER_GUESTS_SHUTDOWN_TIMEOUT", int, 300, "Time limit for shutting down all guests of a host when its machine shuts down, in seconds; 0 = each guest's grace period. The units are derived from it."),
        V("STILLWATER_SHUTDOWN_RETRY_INTERVAL", int, 10, "Seconds between shutdown signals to a guest; at least 1.", least=1),
        V("STILLWATER_RESIZE_CONFIRM_WINDOW", int, 0, "Seconds after which a resize or cold migration is confirmed automatically; 0 = never."),
        V("STILLWATER_RECLAIM_INSTANCE_INTERVAL", int, 0, "Seconds a soft-deleted server is kept and can be restored; 0 = no soft delete. Same value for API and conductors (Nova: reclaim_instance_interval)."),
        V("STILLWATER_SHELVED_OFFLOAD_TIME", int, 0, "Seconds a shelved server stays on its host; 0 = offloaded at once, -1 = never. Same value for API and conductors (Nova: shelved_offload_time)."),
        V("STILLWATER_MAX_ATTEMPTS", int, 3, "Hosts tried per build before it fails."),
        V("STILLWATER_RAM_WEIGHT_MULTIPLIER", float, 1.0, "Weight multiplier of free memory; negative: hosts fill up one by one."),
        V("STILLWATER_CPU_WEIGHT_MULTIPLIER", float, 1.0, "Weight multiplier of free CPUs."),
        V("STILLWATER_DISK_WEIGHT_MULTIPLIER", float, 1.0, "Weight multiplier of free disk."),
        V("STILLWATER_IO_OPS_WEIGHT_MULTIPLIER", float, -1.0, "Weight multiplier of operations in progress; negative: prefer idle hosts."),
        V("STILLWATER_SOFT_AFFINITY_WEIGHT_MULTIPLIER", float, 10.0, "Weight multiplier of soft-affinity."),
        V("STILLWATER_SOFT_ANTI_AFFINITY_WEIGHT_MULTIPLIER", float, 10.0, "Weight multiplier of soft-anti-affinity."),
        V("STILLWATER_MAX_LIMIT", int, 1000, "Maximum number of records per list response."),
        V("STILLWATER_MAX_BODY", int, 1 << 20, "Maximum size of a request body, in bytes (except images)."),
        V("STILLWATER_IMAGE_SIZE_LIMIT", int, 1 << 40, "Maximum size of an image, in bytes."),
        V("STILLWATER_IMAGE_TICKET_TTL", int, 7 * 86400, "Lifetime of a host's ticket to download or upload one image, in seconds."),
        V("STILLWATER_QUOTA_COUNT_FROM", str, "api", "Source of quota usage: the global database (api), or the cells (cells) as in Nova; then projects with servers in a down cell cannot create servers, unless os_compute_api:servers:create:cell_down allows it."),
        V("STILLWATER_QUOTA_INSTANCES", int, 10, "Default quota: servers per project; -1 = unlimited."),
        V("STILLWATER_QUOTA_CORES", int, 20, "Default quota: virtual CPUs per project."),
        V("STILLWATER_QUOTA_RAM", int, 51200, "Default quota: memory per project in MiB."),
        V("STILLWATER_QUOTA_METADATA_ITEMS", int, 128, "Default quota: metadata keys per server."),
        V("STILLWATER_QUOTA_KEY_PAIRS", int, 100, "Default quota: key pairs per user."),
        V("STILLWATER_QUOTA_SERVER_GROUPS", int, 10, "Default quota: server groups per project."),
        V("STILLWATER_QUOTA_SERVER_GROUP_MEMBERS", int, 10, "Default quota: servers per server group."),
        V("STILLWATER_METRICS_PORT", int, 0, "Port on which a scheduler, conductor or host serves its metrics; 0 = none."),
        V("STILLWATER_METRICS_BIND", str, "127.0.0.1", "Bind address of that port."),
        V("STILLWATER_METRICS_TOKEN", str, "", "Bearer token for the API's /metrics; without one, only requests from this machine are answered.", secret=True),
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
