"""The configuration of a private libvirtd: its files, its mounts, its capabilities cache."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from compute.virt.libvirt.xml import choose_virt_type

if TYPE_CHECKING:
    from deploy.local.libvirtd import LibvirtHost

LONGEST_SOCKET = 100  # sun_path is 108 bytes
PORTS_PER_HOST = 64
DIRECTORIES = ("etc", "lib", "log", "cache", "run", "sock", "cfg/libvirt", "data")
BINDS = {
    "/etc/libvirt": "etc",
    "/var/lib/libvirt": "lib",
    "/var/log/libvirt": "log",
    "/var/cache/libvirt": "cache",
    "/run/libvirt": "run",
}
# Each line is needed on a machine without systemd: there is no virtlogd socket and no cgroup delegation, and QEMU's
# private /dev would undo the hidden /dev/kvm.
QEMU = """\
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
security_default_confined = 0
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
"""
# libvirt's default of 5 requests per connection lets six slow calls block every other one.
DAEMON = """\
max_clients = 500
max_workers = 40
max_client_requests = 100
log_filters = "3:event 3:rpc"
"""


def check(host: LibvirtHost) -> None:
    """Raise ValueError for a path with which libvirtd would fail without a clear message."""
    if len(str(host.socket)) > LONGEST_SOCKET:
        raise ValueError(f"{host.socket} is too long for a socket: choose a shorter root directory")


def write(host: LibvirtHost) -> None:
    """Write the daemon's directories and files. May run twice: the content is always the same."""
    here = host.directory
    for name in DIRECTORIES:
        (here / name).mkdir(parents=True, exist_ok=True)
    owner = 'user = "root"\ngroup = "root"\n' if host.is_system else ""
    qemu = here / ("etc/qemu.conf" if host.is_system else "cfg/libvirt/qemu.conf")
    qemu.write_text(owner + QEMU + _addresses(host) + _qemu_tls(host))
    sockets = f'unix_sock_dir = "{here}/sock"\nauth_unix_rw = "none"\n' if host.is_system else ""
    (here / "etc/libvirtd.conf").write_text(
        # without it the host's UUID is random at every start on machines without DMI
        f'host_uuid = "{host.uuid}"\n{sockets}{DAEMON}{_daemon_tls(host)}'
        f'log_outputs = "2:file:{here}/log/libvirtd.log"\n'
    )
    _copy_once(host.capabilities, _capabilities(host))


def binds(host: LibvirtHost) -> list[str]:
    """Return shell lines that mount the host's own directories where libvirtd looks for them."""
    lines = []
    for where, what in BINDS.items():
        os.makedirs(where, exist_ok=True)  # a mount point; empty on a machine without libvirt
        lines.append(f"mount --bind {shlex.quote(str(host.directory / what))} {where}")
    return lines


def hide_kvm(host: LibvirtHost) -> list[str]:
    """Return shell lines that hide a /dev/kvm which opens but cannot run guests (nested, without vmx/svm).

    The mount must be read-only: otherwise root passes access(2), and libvirt probes again and again.
    """
    if choose_virt_type() == "kvm":
        return []
    stand_in = host.directory / "nokvm"
    stand_in.touch()
    mount = f"mount --bind {shlex.quote(str(stand_in))} /dev/kvm"
    return [f"if [ -e /dev/kvm ]; then {mount}; mount -o remount,bind,ro /dev/kvm; fi"]


def warm(host: LibvirtHost) -> None:
    """Make libvirtd probe QEMU now (4 s, once per machine) and keep the result for other hosts."""
    virsh(host, "domcapabilities", seconds=60)
    with contextlib.suppress(OSError):  # only a cache
        _copy_once(_capabilities(host), host.capabilities)


def virsh(host: LibvirtHost, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run virsh against the daemon. Raises TimeoutExpired."""
    command = ["virsh", "-q", "-c", host.uri, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)


def default_capabilities() -> Path:
    """Return the folder that keeps this user's probed capabilities."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "stillwater" / "libvirt-capabilities"


def _addresses(host: LibvirtHost) -> str:
    """Return ports and address of this host. libvirt refuses exactly 127.0.0.1; other addresses of 127/8 work."""
    migration = 49152 + PORTS_PER_HOST * host.index
    display = 5900 + PORTS_PER_HOST * host.index
    return (
        f'migration_address = "{host.address}"\nmigration_host = "{host.address}"\n'
        f"migration_port_min = {migration}\nmigration_port_max = {migration + 63}\n"
        f"remote_display_port_min = {display}\nremote_display_port_max = {display + 63}\n"
    )


def _daemon_tls(host: LibvirtHost) -> str:
    """Return the lines by which the daemon listens, to clients with a certificate of the same authority only."""
    if host.pki is None:
        return ""
    own = host.pki / "libvirt"
    return (
        f'listen_tls = 1\nlisten_tcp = 0\nlisten_addr = "{host.address}"\ntls_port = "{host.tls_port}"\n'
        f'auth_tls = "none"\nca_file = "{host.pki}/CA/cacert.pem"\ncert_file = "{own}/servercert.pem"\n'
        f'key_file = "{own}/private/serverkey.pem"\n'
    )


def _qemu_tls(host: LibvirtHost) -> str:
    """Return the lines by which QEMU refuses to send or take a guest in plain text, or from an unknown host."""
    if host.pki is None:
        return ""
    folder = f'migrate_tls_x509_cert_dir = "{host.pki}/qemu"\n'
    return f"{folder}migrate_tls_x509_verify = 1\nmigrate_tls_force = 1\n"


def _capabilities(host: LibvirtHost) -> Path:
    inside = "cache/qemu" if host.is_system else "cache/libvirt/qemu/cache"
    return host.directory / inside / "capabilities"


def _copy_once(source: Path, target: Path) -> None:
    """Copy a directory unless the target exists; several hosts may start at once."""
    if not source.is_dir() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        copy = shutil.copytree(source, Path(scratch, "copy"))
        with contextlib.suppress(FileExistsError, OSError):  # another host was first
            copy.rename(target)
