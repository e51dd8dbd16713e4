"""Read the output of a server's serial console."""

from __future__ import annotations

from cloud.errors import NotFound
from compute.models import Instance
from compute.operations import host_request
from compute.operations.action import ActionRequest, ActionResponse, ServerAction
from compute.virt.base import Driver


class ConsoleOutput(ServerAction):
    """Answered by the host while the API client waits; changes nothing."""

    key, name = "os-getConsoleOutput", "get_console_output"
    policy = "os_compute_api:os-console-output"
    body = {
        "type": "object",
        "properties": {"length": {"type": ["integer", "string", "null"], "pattern": r"^-?[0-9]+\Z", "minimum": -1}},
        "additionalProperties": False,
    }
    respects_lock = False
    reads_only = True

    def submit(self, instance: Instance, asked: ActionRequest) -> ActionResponse:
        """Ask the server's host; `later` in the response waits for its answer.

        Raises ServerNotReady, HostUnreachable; `later` raises HostUnreachable, CellDown, NotFound.
        """
        length = asked.body.get("length") if isinstance(asked.body, dict) else None
        lines = None if length is None or int(length) < 0 else int(length)
        call = host_request.send(instance, "console_output", {"length": lines})
        return ActionResponse(200, later=lambda: _shown(host_request.wait(call)))


def _shown(output: str | None) -> ActionResponse:
    if output is None:
        raise NotFound("The guest has no console output yet.")
    return ActionResponse(200, {"output": output})


def answer(driver: Driver, server_id: str, params: dict[str, int | None]) -> str:
    """Return the last `length` lines, on the host. As in Nova, the text after the last newline counts as a line."""
    said, pieces = driver.console_output(server_id), params.get("length")
    return said if pieces is None else "\n".join(said.split("\n")[-pieces:] if pieces else [])
