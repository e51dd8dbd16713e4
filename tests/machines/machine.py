"""Machines of a test: namespaces on one bridge, reached by ssh; the network between them can lose packets."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloud.polling import wait_until

BOOT = Path(__file__).with_name("boot.py")
PYTHON = "/usr/bin/python3"  # Debian's, which every machine has
BOOT_SECONDS = 60
SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
       "-o", "BatchMode=yes")  # fmt: skip


class Failed(AssertionError):
    """A command on a machine did not succeed."""


class Network:
    """A bridge in this machine's own namespace; machine number N has the address .10+N."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sw-machines-", dir="/tmp"))
        self.name = f"swm{secrets.token_hex(2)}"
        self.prefix = f"10.213.{secrets.randbelow(250)}"
        self.machines: dict[str, Machine] = {}
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key"))
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "addr", "add", f"{self.prefix}.1/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")

    def add(self, name: str, wheels: Path) -> Machine:
        """Boot one more machine."""
        machine = Machine(self, name, f"{self.prefix}.{10 + len(self.machines)}", wheels)
        self.machines[name] = machine
        machine.boot()
        return machine

    def end(self) -> None:
        """End all machines; nothing of them is left."""
        for machine in self.machines.values():
            machine.end()
        run("ip", "link", "del", self.name)
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine:
    """One machine; `root` is its file system, seen from here."""

    def __init__(self, network: Network, name: str, address: str, wheels: Path) -> None:
        self.network, self.name, self.address, self._wheels = network, name, address, wheels
        self.namespace = f"{network.name}-{name}"
        self.folder = network.folder / name
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Start it, and return when it answers to ssh."""
        self.folder.mkdir()
        shutil.copy(self.network.folder / "key.pub", self.folder / "key.pub")
        run("ip", "netns", "add", self.namespace)
        outside = f"{self.network.name}v{self.address.rpartition('.')[2]}"
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "link", "set", outside, "master", self.network.name, "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")
        script = shutil.copy(BOOT, self.folder / "boot.py")
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--pid", "--uts", "--ipc",
                   "--fork", "--kill-child=SIGKILL", PYTHON, str(script), str(self.folder), self.name, self.address,
                   str(self._wheels)]  # fmt: skip
        with (self.folder / "console.log").open("wb") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                             start_new_session=True)  # fmt: skip
        up = wait_until(lambda: self._ssh("true").returncode == 0 or self._process.poll() is not None, BOOT_SECONDS)
        if not up or self._process.poll() is not None:
            raise Failed(f"{self.name} did not boot: {(self.folder / 'console.log').read_text()[-2000:]}")

    @property
    def root(self) -> Path:
        """Its file system."""
        assert self._process
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return Path(f"/proc/{children[0]}/root")

    def ip(self, *words: str) -> None:
        """Run `ip` in its network."""
        run("ip", "-n", self.namespace, *words)

    def iptables(self, *words: str) -> None:
        """Run iptables in its network."""
        run("ip", "netns", "exec", self.namespace, "iptables", "-w", *words)

    def run(self, command: str, *, seconds: float = 120) -> str:
        """Run a shell line there as root; what it printed. Raises Failed."""
        done = self._ssh(command, seconds)
        if done.returncode != 0:
            raise Failed(f"{self.name}: {command}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def code(self, command: str, *, seconds: float = 120) -> int:
        """The exit code of a shell line there."""
        return self._ssh(command, seconds).returncode

    def end(self) -> None:
        """Cut its power."""
        if self._process and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        run("ip", "netns", "del", self.namespace)

    @contextmanager
    def dropping(self, other: Machine, probability: float = 1.0) -> Iterator[None]:
        """Drop packets between two machines, in both directions; 1.0: all."""
        rules = [(one, rule(peer, probability)) for one, peer in ((self, other), (other, self))]
        for machine, words in rules:
            machine.iptables("-A", "INPUT", *words)
        try:
            yield
        finally:
            for machine, words in rules:
                machine.iptables("-D", "INPUT", *words)

    def _ssh(self, command: str, seconds: float = 10) -> subprocess.CompletedProcess[str]:
        words = ["ssh", *SSH, "-i", str(self.network.folder / "key"), f"root@{self.address}", command]
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"took longer than {seconds} s")


def rule(peer: Machine, probability: float) -> list[str]:
    """Return the rule that drops what comes from a machine."""
    dice = ["-m", "statistic", "--mode", "random", "--probability", str(probability)] if probability < 1 else []
    return ["-s", peer.address, *dice, "-j", "DROP"]


def run(*command: str) -> str:
    """Run a command here. Raises Failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit("this is a module of python -m tests.machines")
