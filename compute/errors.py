"""Errors of compute that callers can act on. A class docstring is the default text of its error: clients see it."""

from __future__ import annotations

from collections.abc import Iterable

from cloud.errors import BadRequest, Conflict, NotFound, Unavailable


class StateConflict(Conflict):
    """Another request changed the server first; nothing was changed."""

    def __init__(self, server_id: str, vm_state: str, task_state: str | None) -> None:
        self.vm_state, self.task_state = vm_state, task_state
        super().__init__(f"server {server_id} is {vm_state}/{task_state or 'idle'}")


class ServerNotFound(NotFound):
    """No such server, or none of the caller's."""

    def __init__(self, server_id: str) -> None:
        super().__init__(f"Instance {server_id} could not be found.")


class ServerLocked(Conflict):
    """The server is locked, and the caller may not override it."""

    def __init__(self, server_id: str) -> None:
        super().__init__(f"Instance {server_id} is locked")


class ServerNotReady(Conflict):
    """The server has no host yet."""

    def __init__(self, server_id: str) -> None:
        super().__init__(f"Instance {server_id} is not ready")


class CellDown(Unavailable):
    """The database of the server's cell does not answer."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Cell {name} does not answer now, so its servers cannot be changed or read in full.")


class PartialList(Unavailable):
    """A list would leave out what is in cells that do not answer, and lists here are to be whole."""

    def __init__(self, names: Iterable[str]) -> None:
        down = sorted(names)
        cells = f"Cell {down[0]} does" if len(down) == 1 else f"Cells {', '.join(down)} do"
        super().__init__(f"{cells} not answer now, so this list cannot be whole. Try again later.")


class HostUnreachable(Unavailable):
    """The host of the server does not answer."""


class NoValidHost(Exception):
    """No host can take the server; the text says which filter left none."""


class FlavorNotFound(NotFound):
    """No such flavor, or none the caller may use."""

    def __init__(self, flavor_id: str) -> None:
        super().__init__(f"Flavor {flavor_id} could not be found.")


class InvalidInput(BadRequest):
    """A field of the body or a query parameter is wrong, in Nova's words."""
