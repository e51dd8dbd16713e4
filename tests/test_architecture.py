"""What the import linter cannot see: rules of the house that hold for every file."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from compute.contract import policy
from compute.operations import dispatch, registry
from compute.operations.action import ServerAction

ROOT = Path(__file__).resolve().parent.parent
OURS = ("cloud", "cells", "compute", "tasks")
MESSAGES = {name: value for name, value in vars(dispatch).items() if str(value).startswith("stillwater.")}
WRITES = {"update", "create", "get_or_create", "update_or_create", "bulk_create", "bulk_update", "save"}
STATES = {"vm_state", "task_state"}
MAY_WRITE_STATES = {
    "compute/state.py",
    "compute/builds/build.py",  # makes the row, in its first state
}
ROLES = {
    "host": {dispatch.RUN_STEP, dispatch.ANSWER_CALL, dispatch.FOLLOW_DRAIN_REQUESTS},
    "conductor": {dispatch.RUN_STEP, dispatch.RUN_DRAIN_MIGRATIONS},
    "scheduler": {dispatch.SCHEDULE},
}
REGISTERED = """
import django; django.setup()
import tasks.{role}
from cloud.celery import app
app.finalize()
print(*[name for name in app.tasks if not name.startswith("celery.")])
"""
MAY_READ_THE_ENVIRONMENT = {
    "cloud/env.py", "cloud/wsgi.py", "cloud/celery.py", "cloud/__main__.py",
    "tasks/worker_process.py",  # hands it on to the process it starts
}  # fmt: skip


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of ours, parsed."""
    paths = [path for top in OURS for path in sorted((ROOT / top).rglob("*.py")) if "migrations" not in path.parts]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def _tasks(module: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    """(message constant, function) of every Celery task of a module."""
    found = []
    for node in ast.walk(module):
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "app.task":
                [name] = [kw.value for kw in decorator.keywords if kw.arg == "name"]
                found.append((ast.unparse(name).removeprefix("dispatch."), node))
    return found


def test_every_message_is_a_task_that_takes_what_a_newer_sender_adds():
    declared = [(constant, task) for path, source in sources().items() if path.startswith("tasks/")
                for constant, task in _tasks(source)]  # fmt: skip
    assert {constant for constant, _ in declared} == set(MESSAGES)
    for constant, task in declared:
        assert task.args.kwarg is not None, f"{constant}: {task.name} has no **newer_sender"
        assert task.args.kwarg.arg == "newer_sender"


@pytest.mark.parametrize(("role", "expected"), sorted(ROLES.items()), ids=sorted(ROLES))
def test_each_kind_of_worker_registers_its_tasks(role, expected):
    shown = subprocess.run(
        [sys.executable, "-c", REGISTERED.format(role=role)], cwd=ROOT, capture_output=True, text=True,
        timeout=60, env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stdout.split()) == expected


def test_states_are_written_in_one_module_only():
    assert [found for path, source in sources().items() if path not in MAY_WRITE_STATES
            for found in _state_writes(path, source)] == []  # fmt: skip


def _state_writes(path: str, source: ast.Module) -> Iterator[str]:
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
            if {keyword.arg for keyword in node.keywords} & STATES:
                yield f"{path}:{node.lineno}"
        elif isinstance(node, ast.Assign):
            targets = [t for one in node.targets for t in (one.elts if isinstance(one, ast.Tuple) else [one])]
            for target in targets:  # an error may carry a state of its own
                if isinstance(target, ast.Attribute) and target.attr in STATES and ast.unparse(target.value) != "self":
                    yield f"{path}:{node.lineno}"


def test_environment_variables_are_read_in_one_module_only():
    assert [
        f"{path}:{node.lineno}"
        for path, source in sources().items() if path not in MAY_READ_THE_ENVIRONMENT
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
    ] == []  # fmt: skip


def _action_modules() -> list[str]:
    return sorted(p.stem for p in (ROOT / "compute/actions").glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("name", _action_modules())
def test_each_file_of_actions_is_one_action_and_has_its_stories(name):
    module = importlib.import_module(f"compute.actions.{name}")
    defined = [
        thing for thing in vars(module).values()
        if inspect.isclass(thing) and issubclass(thing, ServerAction) and thing.__module__ == module.__name__
    ]  # fmt: skip
    assert [cls.__name__ for cls in defined] == [name.title().replace("_", "")]
    assert (ROOT / f"tests/flow/test_{name}.py").is_file()


# opened by other actions, for what they leave behind, or by what other services and hypervisors say
NOBODY_ASKS_FOR = {
    "RemoveStaleGuest", "DeleteShelvedImage", "ShutdownWithHost", "StartWithHost", "PowerUpdate", "RestorePowerState",
    "ExternalEvent",
    "ExtendVolume",
}  # fmt: skip


@pytest.mark.parametrize("action", registry.every().values(), ids=list(registry.every()))
def test_each_action_declares_what_the_rest_is_made_of(action):
    nobodys = type(action).__name__ in NOBODY_ASKS_FOR
    assert nobodys or action.policy in policy.RULES
    assert action.name
    assert action.__class__.__doc__
    for spec in action.all_steps():
        assert callable(getattr(action, spec.name)), f"{spec.name} is declared and not there"
        assert action.find(spec.name) == spec
    assert len({spec.name for spec in action.all_steps()}) == len(action.all_steps())
    assert nobodys or not action.steps or action.all_moves()


def test_no_action_is_named_by_a_string():
    """Where its class cannot be imported, an action has a `Role`. An index of the database can only have a string."""
    names = set(registry.every())
    found = {
        f"{path}: {node.value}"
        for path, source in sources().items()
        for node in ast.walk(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert found == {"compute/models/action.py: ExternalEvent"}


def test_every_policy_rule_is_used_and_every_rule_used_exists():
    used, spoken = set(), set()
    for path, source in sources().items():
        if path == "compute/contract/policy.py":
            continue
        texts = {n.value for n in ast.walk(source) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        rules = {text for text in texts if text.startswith(("os_compute_api:", "compute:servers:"))}
        spoken |= {rule for rule in rules if not rule.endswith(":")}
        used |= {rule for rule in policy.RULES if rule in texts or _is_joined(rule, texts)}
    assert set(policy.RULES) - used == set()
    assert spoken - set(policy.RULES) == set()


def _is_joined(rule: str, texts: set[str]) -> bool:
    """Whether a file has the two halves of a rule: `f"{RULE}show"`, `f"{self.rule}:get_all_tenants"`."""
    parts = rule.split(":")
    halves = [(":".join(parts[:n]), ":".join(parts[n:])) for n in range(1, len(parts))]
    return any((f"{a}:" in texts and b in texts) or (a in texts and f":{b}" in texts) for a, b in halves)


def test_no_pattern_ends_with_a_dollar():
    """In Python `$` also fits before a line break at the end: a number that is checked with it may be "1\\n"."""
    wrong = [
        f"{path}:{value.lineno}: {value.value}"
        for path, module in sources().items()
        for value in _patterns(module)
        if isinstance(value.value, str) and value.value.endswith("$") and not value.value.endswith(r"\$")
    ]
    assert not wrong


def _patterns(module: ast.Module) -> Iterator[ast.Constant]:
    """What stands behind the key `pattern` of a schema, and in `re.compile`, `re.match` and `re.search`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "pattern"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.compile", "re.match", "re.search"):
            found = node.args[:1]
        else:
            continue
        yield from (value for value in found if isinstance(value, ast.Constant))


def test_the_import_contracts_are_there():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert set(linter["root_packages"]) >= set(OURS)
    contracts = linter["contracts"]
    flat = [str(c.get("layers", "")) for c in contracts if c["type"] == "layers"]
    assert any(text.index("tasks") < text.index("compute") < text.index("cells") for text in flat
               if all(top in text for top in ("tasks", "compute", "cells")))  # fmt: skip
    forbidden = [c for c in contracts if c["type"] == "forbidden"]
    assert any(
        "compute.virt" in c["source_modules"] and {"django", "celery"} <= set(c["forbidden_modules"])
        for c in forbidden
    )
    assert any("libvirt" in c["forbidden_modules"] for c in forbidden)
    assert any("celery" in c["forbidden_modules"] and "compute.api" in c["source_modules"] for c in forbidden)


def test_the_page_about_the_architecture_has_the_rooms_in_the_order_of_their_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == ["compute"]]
    rooms = [room for layer in layers for room in layer.split(" | ")]
    text = (ROOT / "docs/architecture.md").read_text()
    assert re.findall(r"`compute/(\w+)(?:/|\.py)`", text[text.index("## The rooms") :]) == rooms


@pytest.mark.parametrize(("flow", "most"), [("One boot", 35), ("A stop", 25), ("A drain", 20)])
def test_a_flow_can_be_read_in_few_files(flow, most):
    text = (ROOT / "docs/journal.md").read_text()
    [(said, section)] = re.findall(rf"### {flow}[^\n]*\((\d+) files\)\n(.*?)\n##", text, re.DOTALL)
    files = re.findall(r"^(\d+)\. `([\w/.]+)`:(.*(?:\n +.*)*)", section, re.MULTILINE)
    assert [int(number) for number, _, _ in files] == list(range(1, int(said) + 1))
    assert len({path for _, path, _ in files}) == int(said) <= most
    named = [(path, name) for _, path, text in files for name in re.findall(r"`(?:\w+\.)?(\w+)`", text)]
    assert [pair for pair in named if not re.search(rf"\b{pair[1]}\b", (ROOT / pair[0]).read_text())] == []
