"""What the units and manifests of deploy/ say, for the tests of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD, KUBERNETES = ROOT / "deploy/systemd", ROOT / "deploy/kubernetes"
UNITS = sorted(path.name for path in SYSTEMD.glob("*.s[eo][rc]*"))
GUESTS = "stillwater-guests@.service"  # no process of ours, but what is done when it is stopped
SERVICES = [name for name in UNITS if name.endswith(".service") and name != GUESTS]
GUESTS_TIMEOUT = "STILLWATER_GUESTS_SHUTDOWN_TIMEOUT"
MANIFESTS = sorted(path.name for path in KUBERNETES.glob("*.yaml"))
WORKLOADS = ["api.yaml", "conductor-cell1.yaml", "host-cell1.yaml", "scheduler.yaml"]
ROLE = re.compile(r"STILLWATER_ROLE\W+(?:value: )?(\w+)")


def generate(kind: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"deploy.{kind}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def rendered(kind: str, into: Path, **settings: str) -> Path:
    """The folder with the files as they are for a site with these settings."""
    file = into / "site.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    out = into / "out"
    out.mkdir()
    done = generate(kind, "--env-file", str(file), "--output", str(out), "--prefix", str(ROOT))
    assert done.returncode == 0, done.stderr
    return out


def lines(unit: Path) -> dict[str, list[str]]:
    """What a unit says, by key; `Environment` by variable."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        key, value = value.split("=", 1) if key == "Environment" else (key, value)
        found.setdefault(key, []).append(value)
    return found


def documents(name: str, folder: Path = KUBERNETES) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((folder / name).read_text()))


def pod(name: str, folder: Path = KUBERNETES) -> dict[str, Any]:
    [found] = [doc["spec"]["template"]["spec"] for doc in documents(name, folder) if "template" in doc.get("spec", {})]
    return found


def container(name: str, folder: Path = KUBERNETES) -> dict[str, Any]:
    [found] = pod(name, folder)["containers"]
    return found


def variables(name: str, folder: Path = KUBERNETES) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(name, folder)["env"]}


def pre_stop(name: str, folder: Path = KUBERNETES) -> int:
    hook = container(name, folder).get("lifecycle", {}).get("preStop")
    return int(hook["exec"]["command"][1]) if hook else 0


def every_document() -> Iterator[dict[str, Any]]:
    for name in MANIFESTS:
        yield from documents(name)
