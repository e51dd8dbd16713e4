"""`python -m deploy.validate`, a part of `make lint`: a mistake in a unit or manifest is named with its place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest

from deploy import validate
from tests.deployment import KUBERNETES, ROOT, SYSTEMD


class Mistake(NamedTuple):
    """`place`: what names it in the file; "": the line of the mistake does."""

    file: str
    right: str
    wrong: str
    what: str
    place: str = ""


POD = "$.spec.template.spec.containers[0]"
MISTAKES = {
    "a mistyped directive": Mistake("stillwater-api.service", "KillMode=", "KilMode=", "Unknown key"),
    "a wrong word": Mistake("stillwater-host@.service", "KillMode=mixed", "KillMode=mix", "kill mode"),
    "a time that is none": Mistake("stillwater-host@.service", "RestartSec=2", "RestartSec=two", "two"),
    "a program that is not there": Mistake("stillwater-guests@.service", "/bin/true", "/bin/tru", "", "/bin/tru"),
    "a mistyped section": Mistake("stillwater-api.service", "[Install]", "[Instal]", "Unknown section"),
    "a mistyped key": Mistake(
        "api.yaml", "failureThreshold: 60", "failureTreshold: 60", "'failureTreshold' was unexpected",
        f"Deployment stillwater-api, {POD}.startupProbe",
    ),
    "a wrong type": Mistake(
        "scheduler.yaml", "replicas: 2", "replicas: two", "'two' is not of type 'integer'",
        "StatefulSet stillwater-scheduler, $.spec.replicas",
    ),
    "a number where Kubernetes takes text": Mistake(
        "host-cell1.yaml", 'value: "200"', "value: 200", "200 is not of type 'string'",
        f"DaemonSet stillwater-host-cell1, {POD}.env[",
    ),
    "a kind that there is not": Mistake("api.yaml", "kind: Service\n", "kind: Servce\n", "schema", "Servce"),
    "two equal keys": Mistake("config.yaml", "kind: ConfigMap\n", "apiVersion: v1\nkind: ConfigMap\n", "duplication"),
    "no YAML": Mistake("config.yaml", "kind: ConfigMap\n", "kind: {}}\n", "syntax"),
    "a mistyped key of the base": Mistake(
        "kustomization.yaml", "images:", "image:", "'image' was unexpected", "kustomization.yaml: $:"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_refused_with_its_file_and_place(kind, tmp_path):
    mistake = MISTAKES[kind]
    kubernetes = mistake.file.endswith(".yaml")
    file = tmp_path / "copy" / mistake.file
    shutil.copytree(KUBERNETES if kubernetes else SYSTEMD, file.parent)
    text = file.read_text()
    assert mistake.right in text
    file.write_text(text.replace(mistake.right, mistake.wrong, 1))
    line = text.split(mistake.right)[0].count("\n") + 1

    found = list((validate.manifests if kubernetes else validate.units)(file.parent))

    [said] = {one.split(" (Kubernetes ")[0] for one in found}  # both versions say the same
    assert said.startswith(f"{file}:") or mistake.place in said
    assert (mistake.place or f"{file}:{line}: ") in said
    assert mistake.what in said


@pytest.mark.parametrize(("path", "said"), [(None, ""), ("/nowhere", "install the package systemd")])
def test_what_is_checked_in_is_valid_where_systemd_is(path, said):
    environment = {"env": {"PATH": path}} if path else {}
    command = [sys.executable, "-m", "deploy.validate"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, **environment)
    assert (done.returncode, done.stderr) == (int(bool(said)), "")
    assert said in done.stdout if said else done.stdout == ""
