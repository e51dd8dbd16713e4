"""The first guest, booted with the standard OpenStack client as a user would do it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import Any

from deploy.local import clients
from deploy.local.output import Failed, hint, say, step
from deploy.local.processes import tool
from deploy.local.state import ROOT, StackState

NAME = "first"
COMMAND_SECONDS = 60
BOOT_SECONDS = 180
READY_SECONDS = 60
READY = "READY"  # in a line that our guests print on their serial console


def first_guest(state: StackState) -> None:
    """Boot the server unless it was booted before; then only print its status."""
    server = _show(state)
    if server is None and state.choices.first_guest:
        say(f"server {NAME!r} was deleted since; it is not booted again")
        return
    if server is None:
        with step(f"booted server {NAME!r}") as note:
            server = _boot(state)
            note.text = str(server["status"])
        state.choices.first_guest = True
        state.save()
        _ready_line(state)
    else:
        say(f"server {NAME!r} is {server['status']}")
        if server["status"] == "ERROR":
            hint(f"see why: openstack server show {NAME}; delete it, and the next `make up` boots a new one")


def client_environment(state: StackState) -> dict[str, str]:
    """Return this environment without the user's OpenStack settings, and with our clouds.yaml."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "STILLWATER_"))}
    return clean | {
        "OS_CLIENT_CONFIG_FILE": str(clients.clouds_yaml(state)),
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def openstack(state: StackState, *words: str, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run the OpenStack client as the user demo."""
    command = [tool("openstack"), "--os-cloud", "stillwater", *words]
    return subprocess.run(
        command, cwd=ROOT, env=client_environment(state), capture_output=True, text=True, timeout=seconds,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def _show(state: StackState) -> dict[str, Any] | None:
    done = openstack(state, "server", "list", "--name", f"^{NAME}$", "-f", "json", "-c", "ID", "-c", "Status")
    if done.returncode != 0:
        raise Failed(f"openstack server list failed: {done.stderr.strip()[-400:]}", log=state.log("api"))
    rows = json.loads(done.stdout)
    return {"id": rows[0]["ID"], "status": rows[0]["Status"]} if rows else None


def _boot(state: StackState) -> dict[str, Any]:
    image = "tiny-linux" if "tiny-linux" in state.choices.images else "micro"
    words = ("server", "create", "--image", image, "--flavor", "m1.tiny", "--nic", "none", "--wait", NAME)
    try:
        done = openstack(state, *words, "-f", "json", seconds=BOOT_SECONDS)
    except subprocess.TimeoutExpired as exc:
        raise Failed(f"server {NAME!r} is not there after {BOOT_SECONDS} s", log=state.log("host1")) from exc
    if done.returncode != 0:
        fault = openstack(state, "server", "show", NAME, "-f", "value", "-c", "fault").stdout.strip()
        raise Failed(
            f"server {NAME!r} did not boot: {fault or done.stderr.strip()[-400:]}",
            log=state.log("scheduler"),
            advice=f"Look at it: {tool('openstack')} --os-cloud stillwater server show {NAME}",
        )  # fmt: skip
    server: dict[str, Any] = json.loads(done.stdout)
    return server


def _ready_line(state: StackState) -> None:
    """Print the console line by which the guest reports that it is up; a simulated guest may have none."""
    started, refused = time.monotonic(), ""
    seconds = 1 if state.choices.driver == "fake" else READY_SECONDS
    while time.monotonic() - started < seconds and not refused:
        log = openstack(state, "console", "log", "show", NAME)
        refused = log.stderr.strip() if log.returncode else ""
        lines = [line.strip() for line in log.stdout.splitlines() if READY in line]
        if lines:
            say(f"its console says: {lines[-1]}", time.monotonic() - started)
            return
        time.sleep(1)
    if refused or state.choices.driver != "fake":
        hint(f"no ready line after {time.monotonic() - started:.0f} s {refused[-200:]}".rstrip())
        hint(f"look: openstack console log show {NAME}")
