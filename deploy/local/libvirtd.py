"""Private libvirt hosts on one machine, without systemd or containers; other libvirtds are not touched.

As root, a host is a libvirtd in its own mount and UTS namespace. As an ordinary user, it is that user's session daemon
with directories of its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from cloud.polling import wait_until
from cloud.processes import alive, gone, kill, read_pid
from deploy.local import libvirtd_conf as conf
from deploy.local.ports import any_free

START_SECONDS = 60
STOP_SECONDS = 15

# Guests are daemonised. Without a reaper nearer than PID 1 a dead guest stays a zombie until PID 1 collects it, and
# every virDomainDestroy waits for that (1 to 2 s in a container).
REAPER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
subprocess.Popen(sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""


class LibvirtHost:
    """One private libvirtd with its sockets, its identity and its guests."""

    def __init__(
        self,
        name: str,
        root: Path | str,
        index: int = 0,
        address: str = "",
        caps_cache: Path | str | None = None,
        pki: Path | None = None,
    ) -> None:
        """`index` tells the hosts of one machine apart: ports and the loopback address follow from it.

        `pki`: the folder of that name of `manage.py tls_certificates`. With it the daemon is reached by TLS, too, only
        as root, and migrations to and from it are encrypted or refused.
        """
        self.name, self.index = name, index
        self.address = address or f"127.0.0.{11 + index}"
        self.directory = Path(root).resolve() / name
        self.uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, str(self.directory)))
        self.is_system = os.geteuid() == 0
        self.capabilities = Path(caps_cache) if caps_cache else conf.default_capabilities()
        self.pki, self.tls_port = pki, any_free() if pki else 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """The UNIX socket of the daemon."""
        inside = "sock" if self.is_system else "run/libvirt"
        return self.directory / inside / "libvirt-sock"

    @property
    def uri(self) -> str:
        """The URI for libvirt.open."""
        driver = "system" if self.is_system else "session"
        return f"qemu+unix:///{driver}?socket={self.socket}"

    @property
    def tls_uri(self) -> str:
        """The URI by which other hosts reach it with TLS."""
        return f"qemu+tls://{self.address}:{self.tls_port}/system"

    @property
    def pidfile(self) -> Path:
        """The pidfile that libvirtd writes itself."""
        return self.directory / "libvirtd.pid"

    def start(self, seconds: float = START_SECONDS) -> LibvirtHost:
        """Start the daemon and wait until it answers; no-op when it does. Guests of a dead daemon are found again.

        Raises ValueError, RuntimeError or TimeoutError.
        """
        if self.is_running() and self._answers():
            return self
        conf.check(self)
        conf.write(self)
        if self.is_system:
            _libvirt_qemu_user()
        if not self.is_running():
            self._launch()
        self._wait_until_it_answers(seconds)
        conf.warm(self)
        return self

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon, by SIGKILL after STOP_SECONDS. Guests go on, as on a real host."""
        pid = self.pid()
        if pid is None:
            return
        kill([pid], sig)
        if not gone([pid], STOP_SECONDS):
            kill([pid])
            gone([pid], STOP_SECONDS)
        self._collect_reaper()

    def is_running(self) -> bool:
        """Return whether the daemon's process runs."""
        return self.pid() is not None

    def pid(self) -> int | None:
        """Return the daemon's process id, never that of another process that got the same number."""
        pid = read_pid(self.pidfile)
        return pid if pid and alive(pid, str(self.directory)) else None

    def qemu_pids(self) -> list[int]:
        """Return the process ids of the guests, from the daemon's pidfiles."""
        places = ("run/qemu", "run/libvirt/qemu/run")
        files = [file for place in places for file in (self.directory / place).glob("*.pid")]
        pids = [read_pid(file) for file in files if file.name != "driver.pid"]
        return [pid for pid in pids if pid and alive(pid, "qemu")]

    def destroy_all(self, seconds: float = STOP_SECONDS) -> None:
        """Kill every guest of this host and wait for their end. Raises TimeoutError."""
        pids = self.qemu_pids()
        kill(pids)
        if not gone(pids, seconds):
            raise TimeoutError(f"{self.name}: guests {pids} survived SIGKILL for {seconds:g} s")

    def __enter__(self) -> LibvirtHost:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy_all()
        self.stop()

    def _launch(self) -> None:
        """Start reaper -> namespaces -> libvirtd in a session of its own, so that it outlives this process."""
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, "-c", REAPER]
        if self.is_system:
            command += ["unshare", "--mount", "--uts"]
        command += ["sh", "-ec", _script(self)]
        with (self.directory / "log/stdout").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                env=None if self.is_system else _session_env(self.directory),
            )
        (self.directory / "reaper.pid").write_text(f"{self._process.pid}\n")

    def _wait_until_it_answers(self, seconds: float) -> None:
        def has_ended() -> bool:
            return self._process is not None and self._process.poll() is not None

        in_time = wait_until(lambda: has_ended() or (self.socket.exists() and self._answers()), seconds, 0.03)
        if has_ended():
            said = (self.directory / "log/stdout").read_text(errors="replace")[-800:]
            raise RuntimeError(f"{self.name}: libvirtd ended while starting: {said}")
        if not in_time:
            raise TimeoutError(f"{self.name}: libvirtd does not answer after {seconds:g} s")

    def _answers(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return conf.virsh(self, "uri", seconds=10).returncode == 0
        return False

    def _collect_reaper(self) -> None:
        """Wait for our child, so that it does not stay a zombie. While guests run, the reaper must go on."""
        if self._process and not self.qemu_pids():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)


def _script(host: LibvirtHost) -> str:
    here = shlex.quote(str(host.directory))
    lines = []
    if host.is_system:
        lines += [f"hostname {shlex.quote(host.name)}", *conf.hide_kvm(host), *conf.binds(host)]
    listen = "--listen " if host.pki else ""
    lines.append(f"exec libvirtd {listen}-f {here}/etc/libvirtd.conf -p {shlex.quote(str(host.pidfile))}")
    return "\n".join(lines)


def _session_env(directory: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(directory),
        "XDG_RUNTIME_DIR": f"{directory}/run",
        "XDG_CONFIG_HOME": f"{directory}/cfg",
        "XDG_CACHE_HOME": f"{directory}/cache",
        "XDG_DATA_HOME": f"{directory}/data",
    }


def _libvirt_qemu_user() -> None:
    """Create the user without which libvirt's system driver does not start, even if guests run as root."""
    try:
        pwd.getpwnam("libvirt-qemu")
    except KeyError:
        command = ["useradd", "-r", "-M", "-s", "/usr/sbin/nologin", "libvirt-qemu"]
        subprocess.run(command, check=True, timeout=30)
