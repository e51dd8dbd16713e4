"""The API process: gunicorn on one port."""

from __future__ import annotations

import contextlib
import subprocess
import urllib.error
import urllib.request

from cloud.polling import wait_until
from cloud.processes import gone, kill, with_command
from deploy.local import envfiles, ports
from deploy.local.output import Failed
from deploy.local.processes import KILL_SECONDS, Daemon, tool
from deploy.local.state import ROOT, StackState

READY_SECONDS = 60
CONFIGURATION = ROOT / "cloud/serving/conf.py"


def daemon(state: StackState) -> Daemon:
    """Return gunicorn's master process."""
    pidfile = state.pidfile("api")
    return Daemon("api", pidfile, f"--pid={pidfile}", state.log("api"))


def check_port(state: StackState) -> None:
    """Raise Failed when another program uses the API's port, before anything is started. Orphaned workers are ended."""
    choices = state.choices
    if daemon(state).pid() is not None:
        return
    # A killed process counts as ended when its main thread has ended; other threads hold the port a moment longer.
    patience = KILL_SECONDS if end_orphans(state) else 1
    if not wait_until(lambda: ports.is_free(choices.port, choices.bind), patience):
        raise Failed(
            f"port {choices.port} on {choices.bind} is in use by another program",
            advice=f"Choose another: make up PORT={ports.next_free(choices.port + 1)}",
        )


def end_orphans(state: StackState) -> int:
    """Kill the workers that outlived a killed gunicorn master: they keep its port. Return how many there were."""
    gunicorn = daemon(state)
    orphans = [] if gunicorn.pid() else with_command(gunicorn.needle)
    kill(orphans)
    gone(orphans, KILL_SECONDS)
    return len(orphans)


def start(state: StackState) -> subprocess.Popen[bytes] | None:
    """Start the API unless it runs. Return the new process, for `wait_until_ready`."""
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
    """Wait until /readyz answers 200. Raises Failed after READY_SECONDS, and at once when `started` ends."""
    ready = wait_until(lambda: is_ready(state) or bool(started and started.poll() is not None), READY_SECONDS)
    if started and started.poll() is not None:
        raise Failed("the API ended while starting", log=state.log("api"))
    if not ready:
        raise Failed(f"the API is not ready after {READY_SECONDS} s", log=state.log("api"))


def is_ready(state: StackState) -> bool:
    """Return whether /readyz answers 200. Proxies are bypassed: the API is on this machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(urllib.error.URLError, OSError):
        return bool(opener.open(f"{state.api_url}/readyz", timeout=5).status == 200)
    return False
