"""Fill the tables of the docs from the code: python docs/generate.py [--check].

A document has `<!-- table: NAME -->` and `<!-- end -->`; the text between them is generated. With `--check` nothing is
written, and the exit code is 1 when a table differs from the code.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BLOCK = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
APPS = ("cells", "compute", "cloud.identity", "cloud.images", "tasks")


def stale(*, write: bool) -> list[str]:
    """Return the documents with a table that differs from the code; `write` corrects them."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        fresh = filled(text)
        if fresh != text:
            found.append(str(path.relative_to(ROOT)))
            if write:
                path.write_text(fresh)
    return found


def filled(text: str) -> str:
    """Return a document with its tables generated again."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def settings() -> str:
    """Return the table of all environment variables."""
    from cloud import env  # noqa: PLC0415  the tables need a Django that is set up

    state = str(env.VARIABLES["STILLWATER_STATE"].default)

    def default(variable: env.Variable) -> str:
        if variable.name == "STILLWATER_STATE":
            return "`var` in the clone; with the wheel `/var/lib/stillwater`"
        value = "" if variable.default is None else variable.default
        text = ",".join(value) if isinstance(value, list) else str(value).replace(state, "<state>")
        return f"`{text}`" if text else ""

    rows = (
        (f"`{v.name}`", v.kind.__name__, default(v), v.meaning + (" Secret." if v.secret else ""))
        for v in env.VARIABLES.values()
    )
    return _table(("variable", "type", "default", "meaning"), rows)


def moves() -> str:
    """Return the table of the state changes of each action."""
    rows = (
        (name, _words(move.start), move.busy, _done(name, move), move.failed or "as it was", _words(move.over))
        for name, move in _moves()
    )
    return _table(("action", "from vm_state", "task_state meanwhile", "done", "failed", "may preempt"), rows)


def drawing() -> str:
    """Return the same as a Mermaid diagram, without deletes."""
    edges: dict[tuple[str, str], list[str]] = {}
    for name, move in _moves():
        for start in sorted(move.start):
            if move.done and name != "delete":
                edges.setdefault((start, move.done), []).append(name)
    lines = [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in sorted(edges.items()) if a != b]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> building", *lines, "```"])


def statuses() -> str:
    """Return the table of the API statuses of each vm_state."""
    from compute import state  # noqa: PLC0415

    def shown(vm_state: str) -> str:
        default = state.status(vm_state, None)
        others = [
            f"{state.status(vm_state, t)} while {t}" for t in state.TaskState if state.status(vm_state, t) != default
        ]
        return ", ".join([default, *others])

    return _table(("vm_state", "status"), ((f"`{s}`", shown(s)) for s in state.VmState))


def follows() -> str:
    """Return the table of what power sync does about each power mismatch, by power authority."""
    from compute.power.sync_policy import PowerAuthority, verdict  # noqa: PLC0415
    from compute.state import VmState  # noqa: PLC0415
    from compute.virt.base import PowerState  # noqa: PLC0415

    def cells(vm_state: VmState, seen: PowerState) -> tuple[str, ...]:
        found = (verdict(truth, vm_state, seen) for truth in PowerAuthority)
        return tuple(one.words if one else "-" for one in found)

    rows = []
    for vm_state in VmState:
        if vm_state in (VmState.DELETED, VmState.SHELVED_OFFLOADED):  # no guest
            continue
        alike: dict[tuple[str, ...], list[str]] = {}
        for seen in PowerState:
            if seen is not PowerState.NOSTATE:
                alike.setdefault(cells(vm_state, seen), []).append(seen.name.lower())
        rows += [(vm_state, ", ".join(names), *words) for words, names in alike.items()
                 if set(words) != {"-"} or len(alike) == 1]  # fmt: skip
    return _table(("vm_state on record", "the hypervisor says", *(f"`{truth}`" for truth in PowerAuthority)), rows)


def steps() -> str:
    """Return the table of where each step runs, and what a restart does with it."""
    from compute.operations import registry  # noqa: PLC0415

    rows = [
        (action.name, step.name, f"`{step.event}`", step.on, step.queue + (", long" if step.long else ""),
         step.on_restart, "compensation" if step not in action.steps else "")
        for action in sorted(registry.every().values(), key=lambda one: one.name)
        for step in action.all_steps()
    ]  # fmt: skip
    return _table(("action", "step", "event", "where", "queue", "on_restart", ""), rows)


def interrupted_steps() -> str:
    """Return the table of what happens to each step when its process drains or is killed."""
    from compute.operations import registry  # noqa: PLC0415
    from compute.operations.action import On  # noqa: PLC0415

    meaning = {"wait": "waits", "elsewhere": "goes to another host", "cancel": "is cancelled"}
    rows = []
    for action in sorted(registry.every().values(), key=lambda one: one.name):
        for step in action.all_steps():
            drained = meaning[step.on_drain] if step.queue == "requests" else "the drain waits for it"
            if step.on is On.CONDUCTOR:
                drained = "another conductor takes it, or it waits"
            undo = f"`{step.undo}`" if step.undo else "no way back" if step.no_return else ""
            rows.append((action.name, f"`{step.name}`", step.on, step.queue, drained, step.on_restart.meaning, undo))
    head = ("action", "step", "where", "queue", "not begun when its process drains", "cut off", "undone by")
    return _table(head, rows)


def failpoints() -> str:
    """Return the table of the failpoints at which a test can kill a process."""
    from cloud.failpoints import POINTS  # noqa: PLC0415

    return _table(("point", "where, and what is done by then"), ((f"`{k}`", v) for k, v in POINTS.items()))


def drain_rules() -> str:
    """Return the table of the work that a process may begin while it drains."""
    from tasks.tracker import ACCEPTED_WHILE_DRAINING, Kind  # noqa: PLC0415

    said = {
        Kind.REQUEST: "an operation that has not begun; every message of a conductor or scheduler",
        Kind.OPERATION: "what a begun operation still needs: later steps, undo steps",
        Kind.CALL: "a call that an API request waits for: console output",
        Kind.DRAIN_REQUEST: "a drain request for this process: drain, undrain, more time",
        Kind.EVENT: "an event of the hypervisor: a guest went off",
        Kind.PERIODIC: "periodic tasks: inventory, power sync, the relay",
    }
    rows = ((k.value, said[k], "begins" if k in ACCEPTED_WHILE_DRAINING else "is refused") for k in Kind)
    return _table(("kind", "what it is", "while the process drains, it"), rows)


def server_actions() -> str:
    """Return the table of the keys of POST /servers/{id}/action."""
    from compute.contract import policy  # noqa: PLC0415
    from compute.operations import registry  # noqa: PLC0415

    rows = (
        (f"`{a.key}`", policy.RULES[a.policy].value, "yes" if a.respects_lock else "no", _span(a.since, a.until))
        for a in sorted(registry.every().values(), key=lambda one: one.key) if a.key
    )  # fmt: skip
    return _table(("key", "who", "refused when locked", "microversions"), rows)


def routes() -> str:
    """Return the table of all paths of the Compute API."""
    from compute.api import urls  # noqa: PLC0415

    rows = []
    for pattern in urls._v21:
        path = re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern))
        view: Any = getattr(pattern.callback, "view_class", None) or pattern.callback.cls  # type: ignore[union-attr]
        if not path.endswith("/"):
            names = [m for m in ("get", "post", "put", "delete") if hasattr(view, m) and m in view.http_method_names]
            rows.append((f"`/{path}`", " ".join(names).upper(), _span(view.since, view.until)))
    return _table(("path", "methods", "microversions"), rows)


def metrics() -> str:
    """Return the table of the Prometheus metrics and of the processes that expose them."""
    from cloud import metrics as declared  # noqa: PLC0415

    rows = ((f"`{one.name}`", one.kind, one.where, ", ".join(one.labels), one.description) for one in declared.DECLARED)
    return _table(("metric", "kind", "shown by", "labels", "meaning"), rows)


def commands() -> str:
    """Return the table of our management commands with their help texts."""
    from django.core.management import get_commands, load_command_class  # noqa: PLC0415

    found = sorted((name, str(app)) for name, app in get_commands().items() if app in APPS)
    rows = ((f"`{name}`", load_command_class(app, name).help.replace("|", "\\|")) for name, app in found)
    return _table(("command", "what it does"), rows)


def _moves() -> Iterator[tuple[str, Any]]:
    from compute.operations import registry  # noqa: PLC0415

    for action in sorted(registry.every().values(), key=lambda one: one.name):
        yield from ((f"{action.name} {kind}".rstrip(), move) for kind, move in action.all_moves().items())


def _done(name: str, move: Any) -> str:
    return "deleted" if name == "delete" else move.done or "as it was"  # a delete ends the record


def _words(states: frozenset[str]) -> str:
    from compute import state  # noqa: PLC0415

    return "any but deleted" if states == state.LIVING else ", ".join(sorted(states))


def _span(since: tuple[int, int], until: tuple[int, int]) -> str:
    first = "" if since == (2, 1) else f"from {since[0]}.{since[1]}"
    last = "" if until[1] == 999 else f"to {until[0]}.{until[1]}"
    return f"{first} {last}".strip() or "all"


def _table(columns: tuple[str, ...], rows: Any) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def external_events() -> str:
    """Return the table of the external events of a server."""
    from compute.contract import microversion  # noqa: PLC0415
    from compute.external_events import event_types  # noqa: PLC0415

    rows = []
    for kind in event_types.EVENT_TYPES.values():
        action = kind.action()
        shown = " or ".join(f"`{name}`" for name in kind.tags.values() or [action.name]) if action.is_shown else ""
        heard = "its host; while it moves, both" if kind.both_hosts else "its host"
        tag = f"{kind.about}, required" if kind.needs_tag else kind.about
        rows.append((f"`{kind.name}`", microversion.text(kind.since), tag, heard, shown))
    return _table(("name", "since", "tag", "goes to", "action in the history"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings, "moves": moves, "drawing": drawing, "statuses": statuses, "follows": follows,
    "steps": steps, "server-actions": server_actions, "routes": routes, "commands": commands,
    "metrics": metrics, "interrupted-steps": interrupted_steps, "failpoints": failpoints, "drain-rules": drain_rules,
    "external-events": external_events,
}  # fmt: skip


def main() -> int:
    """Run the command line."""
    sys.path.insert(0, str(ROOT))
    os.environ["DJANGO_SETTINGS_MODULE"] = "cloud.settings"
    os.environ.pop("STILLWATER_ENV_FILE", None)
    import django  # noqa: PLC0415

    django.setup()
    check = "--check" in sys.argv[1:]
    found = stale(write=not check)
    if found:
        sys.stdout.write(f"{'not up to date' if check else 'written'}: {', '.join(found)}\n")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
