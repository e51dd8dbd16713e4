"""What the documents name exists, and the tables in them are what the code says."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from django.core.management import get_commands

from cloud import metrics

ROOT = Path(__file__).resolve().parent.parent
MADE_ELSEWHERE = {"docs/benchmarks.md"}  # by bench/
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if str(path.relative_to(ROOT)) not in MADE_ELSEWHERE]
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
TARGET = re.compile(r"\bmake ([a-z][a-z-]*)")
COMMAND = re.compile(r"manage\.py ([a-z][a-z_]*)")
FOLDERS = "cells|cloud|compute|tasks|deploy|tests|bench|docs|changes|templates"
FILE = re.compile(rf"(?<![\w/.<-])((?:{FOLDERS})/[\w/.-]*\w/?|manage\.py|requirements[\w.-]*|\.ci/run)")
EVENT = re.compile(r"`([a-z_]+)\.([a-z_]+)`")
SOURCES = [ROOT / folder for folder in ("cells", "cloud", "compute", "tasks", "deploy")]
METRIC = re.compile(r"(?<![\w./])(stillwater_[a-z_]+)(?:\{([^}\n]*)\})?")
PLAYBOOKS = (ROOT / "deploy/ansible/group_vars/all.yml").read_text()
OF_PLAYBOOKS = set(re.findall(r"^(stillwater_\w+):", PLAYBOOKS, re.MULTILINE))  # variables, named alike
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")

pytestmark = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def test_every_make_target_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(code(document))) <= targets


def test_every_command_exists(document: Path) -> None:
    assert set(COMMAND.findall(code(document))) <= set(get_commands())


def test_every_file_exists(document: Path) -> None:
    named = set(FILE.findall(code(document))) - MADE_ELSEWHERE
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_every_link_leads_somewhere(document: Path) -> None:
    for target, heading in LINK.findall(document.read_text()):
        if "://" not in target:
            found = document.parent / target
            assert found.exists(), target
            assert not heading or heading[1:] in headings(found), heading


def test_every_log_event_exists(document: Path) -> None:
    kinds, known = events()
    named = {one for one in EVENT.findall(document.read_text()) if one[0] in kinds and one[1] != "log"}
    assert named <= known


def test_every_metric_exists_with_these_labels(document: Path) -> None:
    declared = {one.name: set(one.labels) for one in metrics.DECLARED}
    for name, labels in METRIC.findall(code(document)):
        if name in OF_PLAYBOOKS - set(declared):
            continue
        assert set(re.findall(r"([a-z_]+)(?:=|,|$)", labels)) <= declared[name], name


def test_tables_are_what_the_code_says(document: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    text = document.read_text()
    assert generate.filled(text) == text, "run: python docs/generate.py"


@cache
def events() -> tuple[set[str], set[tuple[str, str]]]:
    """The first words of all log events; and what may be named with them: any "a.b" of the code, and a.function."""
    text = "\n".join(path.read_text() for folder in SOURCES for path in folder.rglob("*.py"))
    kinds = set(re.findall(r'log(?:ger)?\.\w+\(\s*"([a-z_]+)\.', text))
    functions = re.findall(r"def ([a-z_]+)\(", text)
    strings = re.findall(r'"([a-z_]+)\.([a-z_]+)\b', text)
    return kinds, {*strings, *((kind, name) for kind in kinds for name in functions)}


def code(document: Path) -> str:
    """What a document says in code quotes, without the tables that come from the code."""
    text = re.sub(r"<!-- table: .*?<!-- end -->", "", document.read_text(), flags=re.DOTALL)
    return "\n".join(CODE.findall(text))


def headings(document: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}
