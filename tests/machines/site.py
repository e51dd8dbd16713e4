"""The machines of an inventory, set up by the playbooks of deploy/ansible from a wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from deploy.local.state import ROOT
from tests.machines.machine import SSH, Failed, Machine, Network

PLAYBOOKS = ROOT / "deploy/ansible"
SECONDS = 900
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stillwater/wheels"
# as tests/live/cloud.py: waiting costs the same test more when beats are slow
QUICK = {
    "STILLWATER_REPORT_INTERVAL": "2", "STILLWATER_RELAY_INTERVAL": "2", "STILLWATER_RESEND_AFTER": "5",
    "STILLWATER_PASSWORD_WORK_FACTOR": "1024", "STILLWATER_API_PROCESSES": "2",
}  # fmt: skip

ROOMY = {"STILLWATER_DISK_RATIO": "50"}  # guests of 1 MiB have flavors of 1 GiB


def wheelhouse() -> Path:
    """Return a folder with the wheels of requirements.txt: no machine of ours reaches a package index. Built once."""
    stamp, wanted = WHEELS / "requirements.txt", (ROOT / "requirements.txt").read_text()
    if stamp.is_file() and stamp.read_text() == wanted:
        return WHEELS
    shutil.rmtree(WHEELS, ignore_errors=True)
    WHEELS.mkdir(parents=True)
    command = ["/usr/bin/python3", "-m", "pip", "wheel", "-q", "-r", str(ROOT / "requirements.txt"), "-w", str(WHEELS)]
    subprocess.run(command, check=True, capture_output=True)
    stamp.write_text(wanted)
    return WHEELS


def wheel(tree: Path, folder: Path) -> Path:
    """Build the wheel of a source tree, as `make wheel` does."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(tree)], check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


class Site:
    """An inventory of three lines, and what its operator types."""

    def __init__(self, network: Network, wheel: Path) -> None:
        self.network, self.wheel = network, wheel
        self.inventory = network.folder / "inventory"
        self.log = network.folder / "ansible.log"

    @property
    def control(self) -> Machine:
        """The machine of API and databases."""
        return self.network.machines["control"]

    @property
    def hosts(self) -> list[Machine]:
        """The compute hosts."""
        return [one for name, one in self.network.machines.items() if name != "control"]

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"https://{self.control.address}:8774"

    def secret(self, name: str) -> str:
        """A password that Ansible made."""
        return (self.network.folder / "secrets" / name).read_text().strip()

    def write_inventory(self) -> None:
        """One line for each machine."""
        lines = [f"{name} ansible_host={one.address}" for name, one in self.network.machines.items()]
        self.inventory.write_text("\n".join(lines) + "\n")

    def play(self, book: str, *words: str, **variables: str) -> dict[str, dict[str, int]]:
        """Run a playbook; what it did by machine: ok, changed, failed … Raises Failed."""
        self.write_inventory()
        pip = "--no-index --find-links=/srv/wheels"
        given = {"stillwater_wheel": str(self.wheel), "stillwater_pip_options": pip, **variables}
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(self.inventory),
                   str(PLAYBOOKS / book), *words, "-e", f"@{self._variables(given)}"]  # fmt: skip
        environment = os.environ | {
            "ANSIBLE_SSH_ARGS": " ".join([*SSH, "-o", "ControlMaster=auto", "-o", "ControlPersist=60s"]),
            "ANSIBLE_PRIVATE_KEY_FILE": str(self.network.folder / "key"), "ANSIBLE_REMOTE_USER": "root",
            "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        }  # fmt: skip
        with self.log.open("ab") as out:
            began = out.tell()
            code = subprocess.run(command, env=environment, cwd=self.network.folder, stdin=subprocess.DEVNULL,
                                  stdout=out, stderr=out, timeout=SECONDS).returncode  # fmt: skip
        said = self.log.read_bytes()[began:].decode()
        if code:
            raise Failed(f"ansible-playbook {book} {' '.join(words)}: exit code {code}\n{said[-6000:]}")
        return {name: {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", rest)}
                for name, rest in re.findall(r"^(\S+)\s+: (ok=.*)$", said, re.MULTILINE)}  # fmt: skip

    def _variables(self, given: dict[str, str]) -> Path:
        file = self.network.folder / "variables.json"
        file.write_text(json.dumps({"stillwater_settings": QUICK, "stillwater_host_settings": ROOMY, **given}))
        return file
