"""Become a machine: run by `machine.py` as the first process of new namespaces, with Debian's Python.

python3 boot.py FOLDER NAME ADDRESS WHEELS. The file system is this machine's under an overlay in memory, without /root,
/work and the other places where clones are; it ends, with every process, when this process ends.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

EMPTY = ("run", "tmp", "var/tmp", "root", "home", "opt", "srv", "work", "etc/stillwater", "var/lib/libvirt",
         "var/log/libvirt", "var/cache/libvirt", "etc/libvirt", "etc/pki")  # fmt: skip
SYSTEMD = "run/systemd/system"  # by this folder programs tell that systemd runs


def main(folder: str, name: str, address: str, wheels: str) -> None:
    """Mount, then run sshd and collect what dies."""
    root = _mounted(Path(folder), Path(wheels))
    key = (Path(folder) / "key.pub").read_text()
    _enter(root)
    socket.sethostname(name)
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    Path("/etc/hostname").write_text(f"{name}\n")
    Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)  # services of this machine may start
    Path("/root/.ssh").mkdir(mode=0o700)
    Path("/root/.ssh/authorized_keys").write_text(key)
    Path("/run/sshd").mkdir()
    _run("ssh-keygen", "-A")
    _run("ip", "link", "set", "lo", "up")
    options = [f"ListenAddress={address}", "UsePAM=no", "PermitRootLogin=yes", "PidFile=none", "PrintMotd=no",
               "MaxStartups=100"]  # fmt: skip
    subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", *[word for one in options for word in ("-o", one)]])
    while True:  # a process whose parent has ended is ours
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


def _mounted(folder: Path, wheels: Path) -> Path:
    """Return the root of the machine. An overlay's upper folder may not be below the lower one: it is in memory."""
    _run("mount", "--make-rprivate", "/")
    memory = folder / "memory"
    memory.mkdir()
    _run("mount", "-t", "tmpfs", "tmpfs", str(memory), "-o", "mode=755,size=6g")
    for part in ("upper", "work", "root"):
        (memory / part).mkdir()
    root = memory / "root"
    layers = f"lowerdir=/,upperdir={memory / 'upper'},workdir={memory / 'work'}"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
    for place in EMPTY:
        (root / place).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(root / place), "-o", "mode=755")
    for place in ("tmp", "var/tmp"):
        (root / place).chmod(0o1777)
    (root / "srv/wheels").mkdir()
    _run("mount", "--bind", str(wheels), str(root / "srv/wheels"))
    _run("mount", "-t", "proc", "proc", str(root / "proc"))
    _run("mount", "-t", "sysfs", "sysfs", str(root / "sys"), "-o", "ro")
    _run("mount", "--rbind", "/dev", str(root / "dev"))
    if (root / "dev/kvm").exists():  # one that opens need not run guests: QEMU's emulation, as without it
        stand_in = root / "run/nokvm"
        stand_in.touch()
        _run("mount", "--bind", str(stand_in), str(root / "dev/kvm"))
        _run("mount", "-o", "remount,bind,ro", str(root / "dev/kvm"))
    return root


def _enter(root: Path) -> None:
    old = root / "mnt"
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.pivot_root(str(root).encode(), str(old).encode()):
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chdir("/")
    _run("umount", "-l", "/mnt")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
