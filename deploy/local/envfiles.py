"""Env files: one for the global side, one per process. A host's env file has the secrets of its own cell only."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from cryptography.fernet import Fernet

from cloud.env import VARIABLES
from deploy.local.hosts import libvirt_host
from deploy.local.output import Failed
from deploy.local.state import CELLS, DATABASES, StackState, write_private
from tasks.worker_process import environment, read

# These follow from the place of a process; exporting one of them does not change a cloud.
PLACED = {
    "STILLWATER_STATE", "STILLWATER_ROLE", "STILLWATER_HOST", "STILLWATER_CELL_UUID", "STILLWATER_CELL_NAME",
    "STILLWATER_DRIVER", "STILLWATER_LIBVIRT_URI", "STILLWATER_HOST_STATE",
}  # fmt: skip


def database_variable(name: str) -> str:
    """Return the variable with the URL of the global database or of a cell's database."""
    return "STILLWATER_DATABASE_URL" if name == "global" else f"STILLWATER_{name.upper()}_DATABASE_URL"


def broker_variable(domain: str) -> str:
    """Return the variable with the URL of a broker that replaces the Redis of a failure domain."""
    return f"STILLWATER_{domain.upper()}_BROKER_URL"


def global_file(state: StackState) -> Path:
    """Return the env file of `manage.py`, from which the env files of all processes are derived."""
    return state.path("stillwater.env")


def node_file(state: StackState, node: str) -> Path:
    """Return the env file of one process."""
    return state.path("env", f"{node}.env")


def write(state: StackState) -> dict[str, str]:
    """Write every env file and keep the values generated before. Return the values of the global env file."""
    values = _global_values(state, read(global_file(state)))
    _write(global_file(state), values)
    shared = {name: value for name, value in values.items() if not _is_global_only(name)}
    for role in ("api", "scheduler"):
        _write(node_file(state, role), _service_values(values, role, role))
    for cell in CELLS:
        node = f"conductor-{cell}"
        own = _service_values(values, "conductor", node) | _cell_values(state, values, cell)
        _write(node_file(state, node), own)
    for host, cell in state.hosts.items():
        own = _host_values(state, host) | _cell_values(state, values, cell)
        _write(node_file(state, host), own | shared)
    return values


def process_environment(state: StackState, file: Path) -> dict[str, str]:
    """Return this process's environment with Stillwater's variables replaced by those of an env file."""
    return environment(file, state.directory)


def _global_values(state: StackState, kept: dict[str, str]) -> dict[str, str]:
    values = {
        "STILLWATER_SECRET_KEY": state.secret("secret-key"),
        "STILLWATER_TOKEN_KEYS": Fernet.generate_key().decode(),
        "STILLWATER_PUBLIC_URL": state.api_url,
        "STILLWATER_API_TLS": "off",  # clients and hosts are on this machine
    }
    values |= kept | {name: value for name, value in _exported().items() if not VARIABLES[name].secret}
    # these follow the present choices, not the values kept from the last `up`
    values |= {
        "STILLWATER_STATE": str(state.directory),
        "STILLWATER_BROKER_URL": state.broker_url("global"),
        "STILLWATER_PUBLIC_URL": os.environ.get("STILLWATER_PUBLIC_URL") or state.api_url,
    }
    if state.choices.bind != "127.0.0.1":
        values.setdefault("STILLWATER_ALLOWED_HOSTS", "*")
    for name in DATABASES:
        values[database_variable(name)] = _database_url(state, name, kept)
    return values


def _database_url(state: StackState, name: str, kept: dict[str, str]) -> str:
    """Return the exported URL, else the one kept, else a SQLite file in the state folder. Raises Failed on a change."""
    variable = database_variable(name)
    exported, before = os.environ.get(variable), kept.get(variable)
    if exported and before and exported != before:
        raise Failed(
            f"this cloud's {name} database is another one than {variable} says now",
            advice=f"Unset {variable}, or make a new cloud: make up STILLWATER_STATE=/another/folder",
        )
    return exported or before or f"sqlite:///{state.path(f'{name}.sqlite3')}"


def _service_values(values: dict[str, str], role: str, name: str) -> dict[str, str]:
    """Return the values of an API, scheduler or conductor: cells are rows to it, and only the API reads tokens."""
    hidden = {database_variable(cell) for cell in DATABASES if cell != "global"}
    if role != "api":
        hidden.add("STILLWATER_TOKEN_KEYS")
    kept = {variable: value for variable, value in values.items() if variable not in hidden}
    return kept | {"STILLWATER_ROLE": role, "STILLWATER_HOST": name}


def _cell_values(state: StackState, values: dict[str, str], cell: str) -> dict[str, str]:
    return {
        "STILLWATER_CELL_UUID": state.choices.cells[cell],
        "STILLWATER_CELL_NAME": cell,
        "STILLWATER_CELL_DATABASE_URL": values[database_variable(cell)],
        "STILLWATER_CELL_BROKER_URL": state.broker_url(cell),
    }


def _host_values(state: StackState, host: str) -> dict[str, str]:
    return {
        "STILLWATER_ROLE": "host",
        "STILLWATER_HOST": host,
        "STILLWATER_DRIVER": state.choices.driver,
        "STILLWATER_LIBVIRT_URI": "" if state.choices.driver == "fake" else libvirt_host(state, host).uri,
        "STILLWATER_HOST_STATE": str(state.path("hosts", host, "state")),
        "STILLWATER_RESUME_GUESTS": "1",
        "STILLWATER_AVAILABILITY_ZONE": "nova",
    }


def _exported() -> dict[str, str]:
    """Return the exported variables that are known and not in PLACED."""
    known = set(VARIABLES) - PLACED
    return {name: value for name, value in os.environ.items() if name in known}


def _is_global_only(name: str) -> bool:
    """Return whether a host must not have the variable: secrets, and the cells' database URLs."""
    return name not in VARIABLES or VARIABLES[name].secret


def _write(file: Path, values: dict[str, str]) -> None:
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items()))
    write_private(file, "# Written by `make up`; what you export then is kept here.\n" + "".join(lines))
