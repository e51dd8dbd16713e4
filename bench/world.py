"""Cells in SQLite files, filled with servers, and an API in front of them. Import it after Django is set up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from django.core.management import call_command
from django.db import connections

from bench import rows
from bench.place import PROJECT, ROOT
from cells.context import target_cell
from cells.models import Cell, InstanceMapping
from cells.sqlite.base import create_file
from cloud.identity import tokens
from cloud.identity.models import Project, RoleAssignment, User


def token() -> str:
    """Migrate the global database and return a token of an admin of PROJECT."""
    migrate("default")
    user, _ = User.objects.get_or_create(name="bench", defaults={"id": "b" * 32})
    project, _ = Project.objects.get_or_create(id=PROJECT, defaults={"name": "bench"})
    RoleAssignment.objects.get_or_create(user=user, project=project, role="admin")
    return tokens.issue(user, project, ("password",))


def make_cells(state: Path, count: int, servers: int) -> None:
    """Replace all cells by `count` new ones that share `servers` servers: each has every `count`th of them."""
    InstanceMapping.objects.all().delete()
    Cell.objects.all().delete()
    empty = state / "empty.sqlite3"  # migrated once
    for index in range(count):
        cell_id = str(uuid4())
        cell = Cell.objects.create(
            id=cell_id, name=f"cell{index + 1}", database_url=f"sqlite:///{state / cell_id}.sqlite3"
        )
        with target_cell(cell) as alias:
            file = Path(str(connections[alias].settings_dict["NAME"]))
            if empty.exists():
                shutil.copy(empty, file)
            else:
                migrate(alias)
                connections[alias].close()
                shutil.copy(file, empty)
            rows.fill(range(index, servers, count))
            rows.map_servers(cell)


def migrate(alias: str) -> None:
    """Create the tables of a database, and the file of a SQLite database."""
    if connections[alias].vendor == "sqlite":
        create_file(str(connections[alias].settings_dict["NAME"]))
    call_command("migrate", database=alias, verbosity=0, interactive=False)


@contextmanager
def gunicorn(state: Path, port: int, processes: int = 0) -> Iterator[str]:
    """Run the API as `make up` starts it, and yield its URL. `processes` 0: the default number."""
    url = f"http://127.0.0.1:{port}"
    command = [
        str(Path(sys.executable).with_name("gunicorn")), f"--config={ROOT / 'cloud/serving/conf.py'}", "cloud.wsgi",
        f"--bind=127.0.0.1:{port}", *([f"--workers={processes}"] if processes else []),
    ]  # fmt: skip
    with (state / "gunicorn.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "STILLWATER_PUBLIC_URL": url}, stdout=log,
                                   stderr=log)  # fmt: skip
        try:
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5)
            return
        except OSError:  # not yet, or busy
            time.sleep(0.1)
    raise RuntimeError("gunicorn did not start; see gunicorn.log in the state folder")
