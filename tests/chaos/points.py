"""kill -9 at each named point in turn, in each kind of process that has it, and in the middle of each driver verb."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from cloud.failpoints import POINTS
from deploy.local import envfiles
from tests.chaos import run
from tests.chaos.ledger import Finding
from tests.chaos.place import DIES, Place
from tests.chaos.report import Verdict
from tests.chaos.story import BODIES, NAMED, Client, Story
from tests.chaos.supervisor import Supervisor
from tests.live.cloud import eventually

HIT_SECONDS, IDLE_SECONDS, REST_SECONDS = 40, 45, 90
ROLES = {"API": "api", "scheduler": "scheduler", "host": "host", "conductor": "conductor"}
# what leads to where a verb is legal
BEFORE = {"unpause": "pause", "resume": "suspend", "start": "stop", "confirm": "resize", "revert": "resize",
          "unrescue": "rescue", "unshelve": "shelve"}  # fmt: skip
DEADLY = {
    "spawn": "", "destroy": "delete", "power_on": "start", "power_off": "stop", "reboot_hard": "hard reboot",
    "pause": "pause", "unpause": "unpause", "suspend": "suspend", "resume": "resume", "snapshot": "createImage",
    "signal_shutdown": "soft reboot", "pre_migrate": "live-migrate", "migrate_out": "live-migrate",
    "finish_migration": "live-migrate",
    "revert_migration": "revert", "rescue": "rescue", "unrescue": "unrescue",
}  # fmt: skip
# operation -> each step and the kind of process that runs it
STEPS = {
    "resize": {"check_source": "host", "pick": "conductor", "pre_migrate": "host", "migrate_out": "host",
               "finish_migration": "host"},
    "confirm": {"cleanup_source": "host", "update_quota": "conductor"},
    "revert": {"power_off": "host", "revert_migration": "host", "cleanup_destination": "host",
               "update_quota": "conductor"},
}  # fmt: skip
UNDOS = {
    "resize": {"cleanup_destination": "host", "revert_migration": "host", "cancel_pre_migrate": "host",
               "release_claim": "conductor"},
    "revert": {"cleanup_source": "host", "power_on_again": "host"},
}  # fmt: skip
FAILING = {"resize": "unsettled", "revert": "unreturned"}  # images with which all of them have to be undone


def names() -> list[str]:
    """Every point of every kind of process, as `point@role`; the worst for every operation; `verb.die` for every verb.

    For what goes from host to host the worst of every step, `point:step@role/operation`.
    """
    found = []
    for point, text in POINTS.items():
        roles = [ROLES[role] for role in text.split(":")[0].split(", ")]
        found += [f"{point}@{role}" for role in roles]
    found += [f"step.worked@host/{operation}" for operation in (*BODIES, *NAMED, "resize", "rebuild", "delete")]
    for point, steps_of in (("step.worked", STEPS), ("undo.worked", UNDOS)):
        found += [f"{point}:{step}@{role}/{key}" for key, steps in steps_of.items() for step, role in steps.items()]
    return found + [f"{verb}.die" for verb in DIES]


def all_of_them(place: Place, wanted: list[str] | None = None) -> list[Verdict]:
    """One verdict for each."""
    supervisor = Supervisor(place, run.say)
    with supervisor.watching():
        _arm(place, supervisor)
        return [_one(place, supervisor, name) for name in wanted or names()]


def _arm(place: Place, supervisor: Supervisor) -> None:
    """Tell every process the file that names its point, and start it anew."""
    state = place.cloud.state
    processes = [name for name in place.names if name != "postgres" and not name.startswith("redis-")]
    for name in processes:
        with envfiles.node_file(state, name).open("a") as file:
            file.write(f"STILLWATER_KILL_AT={_trap(place, name.rstrip('0123456789').split('-')[0])}\n")
        supervisor.harm(name, "SIGKILL", 0.0)
    run.rest(place, supervisor)


def _trap(place: Place, role: str) -> Path:
    return place.cloud.state.path("run", f"kill-{role}")


def _one(place: Place, supervisor: Supervisor, name: str) -> Verdict:
    began, before = time.monotonic(), dict(supervisor.deaths)
    story = Story(place, f"p{int(began * 1000)}", 0)
    client = Client(story, random.Random(name), 0)
    was_hit = _deadly(client, name) if name.endswith(".die") else _at_point(place, supervisor, client, name)
    run.rest(place, supervisor, REST_SECONDS)
    verdict = run.judge(place, name, story)
    died = {process for process, deaths in supervisor.deaths.items() if deaths > before[process]}
    verdict.deaths = sum(supervisor.deaths.values()) - sum(before.values())
    if not was_hit or not (died or name.endswith("@api")):  # gunicorn itself replaces its worker
        place.spilled = True
        verdict.findings.append(Finding("lost", "", f"the point was not hit ({', '.join(died) or 'nobody'} died)"))
    verdict.seconds = time.monotonic() - began
    run.say(f"{name}: {'well' if verdict.good else 'BAD'}, {', '.join(sorted(died)) or 'an API worker'} died")
    print(verdict.culprits, end="", flush=True)
    return verdict


def _at_point(place: Place, supervisor: Supervisor, client: Client, name: str) -> bool:
    """Arm it, and do a little of everything, or just one thing, until somebody has died of it."""
    point, _, where = name.partition("@")
    role, _, operation = where.partition("/")
    trap = _trap(place, role)
    server = _ready(client, FAILING[operation] if point.startswith("undo") else "quick", operation) if operation else ""
    trap.write_text(point)
    if server:
        client.ask(operation, server)
    elif not operation:
        _load(client)
    if point == "recovery.begun":
        for process in supervisor.deaths:
            if process.startswith(role):
                supervisor.harm(process, "SIGKILL", 0.0)
    with suppress(AssertionError):
        eventually(name, lambda: not trap.exists(), HIT_SECONDS)
    was_hit = not trap.exists()
    trap.unlink(missing_ok=True)
    return was_hit


def _load(client: Client) -> None:
    """What comes to every kind of process: also boots and copies that fail, and a delete that has to be taken back."""
    quick, other = client.boot("quick"), client.boot("quick")
    uncopied, sticky, unmoved = (client.boot(image) for image in ("uncopied", "sticky", "unmoved"))
    client.boot("reluctant")
    _idle(client, [quick, other, uncopied, sticky, unmoved])
    requests = {"soft reboot": quick, "hard reboot": other, "createImage": uncopied, "delete": sticky}
    for verb, server in (requests | {"live-migrate": unmoved}).items():
        if server:
            client.ask(verb, server)


def _deadly(client: Client, name: str) -> bool:
    """A guest whose worker dies once, in the middle of one verb."""
    verb = name.removesuffix(".die")
    server = _ready(client, f"die-{verb}", DEADLY[verb])
    if server and DEADLY[verb]:
        client.ask(DEADLY[verb], server)
    return bool(server)


def _ready(client: Client, image: str, operation: str) -> str:
    """A server where the operation is allowed."""
    server = client.boot(image)
    _idle(client, [server])
    if server and operation in BEFORE:
        client.ask(BEFORE[operation], server)
        _idle(client, [server])
    return server


def _idle(client: Client, servers: Iterable[str]) -> None:
    """Until none of them is at anything; what hangs, the books will say."""

    def idle(server: str) -> Callable[[], bool]:
        return lambda: (seen := client.look(server)) is not None and seen[1] is None and seen[0] != "BUILD"

    for server in filter(None, servers):
        with suppress(AssertionError):
            eventually("it is idle", idle(server), IDLE_SECONDS, 0.1)
