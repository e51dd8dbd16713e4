"""The API: gunicorn on one port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import urllib.error
import urllib.request

from cloud.processes import gone, with_command
from deploy.local import envfiles, ports
from deploy.local.output import Failed, wait_for
from deploy.local.processes import KILL_SECONDS, Daemon, tool
from deploy.local.state import ROOT, StackState

READY_SECONDS = 60
CONFIGURATION = ROOT / "cloud/serving/conf.py"


def daemon(state: StackState) -> Daemon:
    """Gunicorn's first process."""
    pidfile = state.pidfile("api")
    return Daemon("api", pidfile, f"--pid={pidfile}", state.log("api"))


def check_port(state: StackState) -> None:
    """Refuse a port that is somebody else's before anything is started."""
    choices = state.choices
    if daemon(state).pid() is not None:
        return
    # A killed process counts as ended when its first thread is; the others hold the port a moment longer.
    patience = KILL_SECONDS if end_orphans(state) else 1
    if not wait_for(lambda: ports.is_free(choices.port, choices.bind), patience):
        raise Failed(
            f"port {choices.port} on {choices.bind} is in use by another program",
            advice=f"Choose another: make up PORT={ports.next_free(choices.port + 1)}",
        )


def end_orphans(state: StackState) -> int:
    """End the workers of a gunicorn that was killed: they finish their requests, and hold its port. How many."""
    gunicorn = daemon(state)
    orphans = [] if gunicorn.pid() else with_command(gunicorn.needle)
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    gone(orphans, KILL_SECONDS)
    return len(orphans)


def start(state: StackState) -> subprocess.Popen[bytes] | None:
    """Start it unless it runs; what was started is handed to `wait_until_ready`."""
    if not daemon(state).forget_if_dead():
        return None
    choices = state.choices
    command = [
        tool("gunicorn"), f"--config={CONFIGURATION}", "cloud.wsgi", f"--bind={choices.bind}:{choices.port}",
        f"--pid={state.pidfile('api')}",
        f"--access-logfile={state.log('api-access')}", "--error-logfile=-",
    ]  # fmt: skip
    environment = envfiles.process_environment(state, envfiles.node_file(state, "api"))
    with state.log("api").open("ab") as out:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip


def wait_until_ready(state: StackState, started: subprocess.Popen[bytes] | None) -> None:
    """Until /readyz says yes; one that ended while starting fails at once."""
    ready = wait_for(lambda: is_ready(state) or bool(started and started.poll() is not None), READY_SECONDS)
    if started and started.poll() is not None:
        raise Failed("the API ended while starting", log=state.log("api"))
    if not ready:
        raise Failed(f"the API is not ready after {READY_SECONDS} s", log=state.log("api"))


def is_ready(state: StackState) -> bool:
    """Whether /readyz answers 200. No proxy: this is our own machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(urllib.error.URLError, OSError):
        return bool(opener.open(f"{state.api_url}/readyz", timeout=5).status == 200)
    return False
