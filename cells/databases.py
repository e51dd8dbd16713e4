"""Registration of cells as Django databases at run time; no process needs a restart."""

from __future__ import annotations

import threading
from copy import deepcopy

from django.db import connections

from cells.database_urls import cell_config
from cells.models import Cell

_lock = threading.Lock()
_IDENTITY = ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD")


def register(cell: Cell) -> str:
    """Register the cell's database with Django, or follow a changed URL; return its alias."""
    return register_url(cell.alias, cell.database_url)


def register_url(alias: str, url: str) -> str:
    """As `register`, for a process that knows its cell only from its environment."""
    known = connections.databases.get(alias)
    wanted = cell_config(url)
    if known is not None and all((known.get(k) or "") == (wanted.get(k) or "") for k in _IDENTITY):
        if connections[alias].settings_dict is not known:  # another thread followed a changed URL
            _forget_connection(alias)
        return alias
    with _lock:
        full = connections.configure_settings({"default": {}, alias: deepcopy(wanted)})[alias]
        connections.databases[alias] = full
        if known is not None:
            _forget_connection(alias)
    return alias


def _forget_connection(alias: str) -> None:
    """Drop this thread's connection to the old URL; other threads drop theirs when they register or at CONN_MAX_AGE."""
    try:
        connections[alias].close()
        del connections[alias]
    except AttributeError:
        pass
