"""python -m deploy.validate [--units FOLDER] [--manifests FOLDER]: refuse units and manifests with a mistake.

Units are read by systemd itself (`systemd-analyze verify`), manifests by the schemas of Kubernetes, offline
(kubernetes-validate). Needs the packages of requirements-dev.txt and Debian's systemd.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from yamllint import linter
from yamllint.config import YamlLintConfig

from deploy.local.state import ROOT
from tasks.stop_timeouts import INSTALLED

OLDEST = "1.30"  # of the Kubernetes versions that the manifests are for
VERSIONS = (OLDEST, kubernetes_validate.latest_version())
SECONDS = 60
UNITS, MANIFESTS = (Path(os.path.relpath(ROOT / "deploy" / name)) for name in ("systemd", "kubernetes"))
# YAML takes the last of two equal keys without a message.
YAML_RULES = YamlLintConfig("rules: {key-duplicates: enable}")
# kustomize reads it, not the API server, so kubernetes-validate has no schema. These are the fields that we use.
KUSTOMIZATION = Draft202012Validator(
    {
        "type": "object",
        "required": ["apiVersion", "kind", "namespace", "resources"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": "kustomize.config.k8s.io/v1beta1"},
            "kind": {"const": "Kustomization"},
            "namespace": {"type": "string"},
            "resources": {"type": "array", "items": {"type": "string"}},
            "images": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {name: {"type": "string"} for name in ("name", "newName", "newTag")},
                },
            },
        },
    }
)


def main(words: list[str]) -> int:
    """Print each mistake with its file and line or key; 1 when there is one."""
    parser = argparse.ArgumentParser(prog="python -m deploy.validate", description=__doc__)
    parser.add_argument("--units", type=Path, default=UNITS, help="default: %(default)s")
    parser.add_argument("--manifests", type=Path, default=MANIFESTS, help="default: %(default)s")
    wanted = parser.parse_args(words)
    mistakes = [*units(wanted.units), *manifests(wanted.manifests)]
    for mistake in mistakes:
        sys.stdout.write(f"{mistake}\n")
    return int(bool(mistakes))


def units(folder: Path) -> Iterator[str]:
    """Yield what systemd does not take of the units in a folder.

    systemd-analyze also looks for the executables, so it reads copies that name this checkout instead of /opt.
    Messages about units of this machine are left out: they are not ours.
    """
    if shutil.which("systemd-analyze") is None:
        yield f"{folder}: systemd-analyze is missing; install the package systemd, or run `make bootstrap`"
        return
    with tempfile.TemporaryDirectory(prefix="sw-units-") as copies:
        for path in folder.glob("stillwater*"):
            text = path.read_text().replace(INSTALLED, str(ROOT))
            (Path(copies) / path.name).write_text(text)
        names = sorted(map(str, Path(copies).iterdir()))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", *names],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    said = [line for line in (done.stdout + done.stderr).splitlines() if "stillwater" in line]
    yield from (line.replace(copies, str(folder)) for line in said)
    if done.returncode and not said:
        yield f"{folder}: systemd-analyze ended with {done.returncode}: {done.stderr}"


def manifests(folder: Path) -> Iterator[str]:
    """Yield what Kubernetes, in its oldest and its newest version, does not take of the manifests in a folder."""
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text()
        broken = [f"{path}:{one.line}: {one.desc}" for one in linter.run(text, YAML_RULES)]
        yield from broken or (f"{path}: {mistake}" for one in yaml.safe_load_all(text) for mistake in _document(one))


def _document(document: dict[str, Any]) -> Iterator[str]:
    if not isinstance(document, dict) or not {"apiVersion", "kind"} <= set(document):
        yield "a document without apiVersion and kind"
    elif document["kind"] == "Kustomization":
        yield from (f"{one.json_path}: {one.message}" for one in KUSTOMIZATION.iter_errors(document))
    else:
        yield from _resource(document)


def _resource(document: dict[str, Any]) -> Iterator[str]:
    name = f"{document['kind']} {document.get('metadata', {}).get('name')}"
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as exc:
            yield f"{name}, {exc.json_path}: {exc.message} (Kubernetes {version})"
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name}: there is no schema for this kind in {document['apiVersion']} (Kubernetes {version})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
