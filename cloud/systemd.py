"""The supervisor of this process (systemd, Kubernetes): what it is told, and when it kills.

The messages of sd_notify(3) go to a UNIX socket that systemd names; without one they are dropped. A worker reports when
it is ready, what it does, and during a drain that it makes progress, so that systemd does not kill it.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from cloud import env, log
from cloud.durations import parse_duration

logger = log.get(__name__)
CGROUP = Path("/proc/self/cgroup")
ASK_SECONDS = 5


def ready(status: str = "") -> None:
    """Report that the process takes work."""
    _say("READY=1", *_status(status))


def status(text: str) -> None:
    """Set the line for `systemctl status`."""
    _say(*_status(text))


def stopping(text: str = "") -> None:
    """Report that the process ends. It cannot be taken back: systemd kills it TimeoutStopSec from now."""
    _say("STOPPING=1", *_status(text))


def extend(seconds: float, text: str = "") -> None:
    """Ask for `seconds` more from now on; repeated while a drain makes progress."""
    _say(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", *_status(text))


def watch(healthy: Callable[[], bool]) -> threading.Thread | None:
    """Ping systemd's watchdog while `healthy()` is true; None when systemd does not watch this process."""
    interval, pid = env.from_systemd("WATCHDOG_USEC"), env.from_systemd("WATCHDOG_PID")
    if not interval or (pid and int(pid) != os.getpid()):
        return None
    pause = int(interval) / 2e6
    thread = threading.Thread(target=_ping, args=(healthy, pause), name="watchdog", daemon=True)
    thread.start()
    return thread


def warn_if_impatient(graceful_timeout: float) -> None:
    """Warn, once at start, when the supervisor kills before this process ends itself (0: it never does)."""
    seconds, who = kill_after()
    ours = graceful_timeout or math.inf
    if seconds is None or seconds > ours or seconds == math.inf:
        return
    logger.warning(
        "supervisor.timeout_too_short", supervisor=who, kills_after=seconds, graceful_shutdown_timeout=graceful_timeout,
        advice=_advice(seconds, ours),
    )  # fmt: skip


def kill_after() -> tuple[float | None, str]:
    """Return the seconds between SIGTERM and SIGKILL (None: unknown, inf: never), and the supervisor.

    systemd is asked, because a drop-in may override the unit that we wrote; else it is STILLWATER_SUPERVISOR_TIMEOUT.
    """
    unit = _unit()
    if unit:
        seconds = _stop_seconds(unit)
        if seconds is not None:
            return seconds, f"systemd ({unit})"
    told = settings.SUPERVISOR_TIMEOUT
    if told is None:
        return None, "unknown"
    return told or math.inf, "as STILLWATER_SUPERVISOR_TIMEOUT says"


def _advice(seconds: float, ours: float) -> str:
    if ours == math.inf:
        cure = "Let it wait for ever (systemd: TimeoutStopSec=infinity; Kubernetes has no such thing)"
    else:
        cure = (
            f"Give it more than {ours:g} s (systemd: TimeoutStopSec; Kubernetes: terminationGracePeriodSeconds; "
            "manage.py systemd_units and python -m deploy.kubernetes write both)"
        )
    return (
        f"This process would be killed {seconds:g} s after SIGTERM, in the middle of its work. {cure}, "
        f"or set STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT to less than {seconds:g}."
    )


def _unit() -> str:
    """Return the systemd service of this process; "" when systemd did not start it."""
    if not (env.from_systemd("INVOCATION_ID") or env.from_systemd("NOTIFY_SOCKET")):
        return ""
    last = _cgroup().rsplit("/", 1)[-1]
    return last if last.endswith(".service") else ""


def _cgroup() -> str:
    """Return the path of this process in systemd's hierarchy: cgroup 2, or the named one of cgroup 1."""
    try:
        lines = [line.split(":", 2) for line in CGROUP.read_text().splitlines()]
    except OSError:
        return ""
    places = {name: place for _, name, place in lines}
    return places.get("name=systemd") or places.get("", "")


def _stop_seconds(unit: str) -> float | None:
    whose = ["--user"] if env.from_systemd("MANAGERPID") else []  # set only by a user's systemd
    ask = ["systemctl", *whose, "show", unit, "--property=TimeoutStopUSec,KillMode,SendSIGKILL"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    facts = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    if facts.get("KillMode") == "none" or facts.get("SendSIGKILL") == "no":
        return math.inf
    try:
        return parse_duration(facts.get("TimeoutStopUSec", ""))
    except ValueError:
        return None


def _ping(healthy: Callable[[], bool], pause: float) -> None:
    asleep, was_well = threading.Event(), True
    while not asleep.wait(pause):
        well = healthy()
        if well:
            _say("WATCHDOG=1")
        elif was_well:
            logger.error("supervisor.unhealthy", advice="systemd will end and restart this process")
        was_well = well


def _status(text: str) -> list[str]:
    return [f"STATUS={' '.join(text.split())}"] if text else []


def _say(*lines: str) -> None:
    """Send it to systemd, if it listens. A lost message is no reason to fail."""
    address = env.from_systemd("NOTIFY_SOCKET")
    if not address or not lines:
        return
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(1)
            line.sendto("\n".join(lines).encode(), name)
    except OSError as error:
        logger.warning("supervisor.notify_failed", message=lines[0], error=repr(error))
