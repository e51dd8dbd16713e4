"""The playbooks: valid, of built-in modules only, and with settings that exist. `make machines-test` runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud import env

FOLDER = env.ROOT / "deploy/ansible"
BOOKS = sorted(path.name for path in FOLDER.glob("*.yml"))
TASKS = sorted(FOLDER.glob("**/tasks/*.yml"))
OF_A_TASK = {
    "name", "when", "register", "changed_when", "failed_when", "no_log", "loop", "loop_control", "vars", "delegate_to",
    "run_once", "become", "module_defaults", "until", "retries", "delay", "throttle", "block", "rescue", "environment",
}  # fmt: skip
SECRET = re.compile(r"password|secret_key|token_key|\.env\.j2|machine\.key|\.sql\.j2|definitions|_env\b")


def tasks(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All tasks of a file, those in blocks too."""
    found = []
    for task in listed:
        inner = task.get("block", []) + task.get("rescue", [])
        found += tasks(inner) if inner else [task]
    return found


def of_books() -> list[tuple[str, dict[str, Any]]]:
    """Every task of every playbook and role, with its file."""
    found = [(str(path.relative_to(FOLDER)), task)
             for path in TASKS for task in tasks(yaml.safe_load(path.read_text()))]  # fmt: skip
    for book in BOOKS:
        for play in yaml.safe_load((FOLDER / book).read_text()):
            found += [(book, task) for task in tasks(play.get("tasks", []))]
    return found


@pytest.mark.parametrize("book", BOOKS)
def test_ansible_takes_the_playbook(book, tmp_path):
    inventory = tmp_path / "inventory"
    inventory.write_text("control ansible_host=192.0.2.1\nhost1 ansible_host=192.0.2.2\nhost2 ansible_host=192.0.2.3\n")
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [str(program), "--syntax-check", "-i", str(inventory), str(FOLDER / book), "-e", "host=host1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "secrets").exists(), "a check makes no secret"


def test_only_modules_of_ansible_itself_are_used():
    used = {key for _, task in of_books() for key in task if key not in OF_A_TASK}
    assert used
    assert {key for key in used if not key.startswith("ansible.builtin.")} == set()


def test_every_setting_exists():
    texts = [path.read_text() for path in FOLDER.rglob("*") if path.suffix in (".yml", ".j2")]
    named = {name for text in texts for name in re.findall(r"\bSTILLWATER_[A-Z_]+\b", text)} - {"STILLWATER_ENV_FILE"}
    assert len(named) > 10
    assert named <= set(env.VARIABLES)


def test_no_task_with_a_secret_shows_what_it_does():
    """The password of a variable, an env file, a private key."""
    writes = ("ansible.builtin.template", "ansible.builtin.copy", "ansible.builtin.slurp")
    shown = [
        f"{file}: {task['name']}" for file, task in of_books()
        if (any(SECRET.search(str(task[key])) for key in writes if key in task) or "stdin" in str(task))
        and not task.get("no_log") and not str(task).count("remote_src")
    ]  # fmt: skip
    assert shown == []


def test_an_env_file_is_for_its_owner_alone():
    written = [(file, task["ansible.builtin.template"]) for file, task in of_books()
               if "process.env.j2" in str(task.get("ansible.builtin.template"))]  # fmt: skip
    assert len(written) == 4
    assert {task["mode"] for _, task in written} == {"0600"}


def test_the_page_names_variables_and_playbooks_that_exist():
    page = (env.ROOT / "docs/install.md").read_text()
    known = set(yaml.safe_load((FOLDER / "group_vars/all.yml").read_text()))
    named = set(re.findall(r"`(stillwater_\w+)`", page))
    assert len(named) > 8
    assert named <= known
    assert set(re.findall(r"deploy/ansible/(\w+\.yml)", page)) == set(BOOKS)
