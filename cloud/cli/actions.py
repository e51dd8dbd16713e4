"""The actions of the command line, and the API request of each."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

POWERS_OFF = {"stop", "rescue", "resize", "shelve", "migrate", "delete"}  # the guest gets a grace period
HARD, SOFT = "HARD", "SOFT"
CONFIRM = "Keep it: stillwater server resize --confirm {server}; undo it: stillwater server resize --revert {server}"


@dataclass(frozen=True, slots=True)
class CliAction:
    """An action. `key` names it in POST /servers/{id}/action; "" is a request of its own."""

    name: str
    key: str
    help: str
    past: str
    next_step: str = ""  # with {server}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """The API request for one server."""

    method: str
    path: str
    body: Any = None


ACTIONS = {
    action.name: action
    for action in (
        CliAction("start", "os-start", "Power servers on.", "started"),
        CliAction("stop", "os-stop", "Power servers off, each guest with its grace period.", "stopped"),
        CliAction("reboot", "reboot", "Restart servers; hard when the guest does not react.", "rebooted"),
        CliAction("delete", "", "Delete servers.", "deleted"),
        CliAction("rescue", "rescue", "Boot another disk, to repair the server's own.", "in rescue",
                  "Boot its own disk again: stillwater server unrescue {server}"),
        CliAction("unrescue", "unrescue", "End a rescue.", "booted from its own disk"),
        CliAction("shelve", "shelve", "Store servers as images and free their hosts.", "shelved",
                  "Restore it: stillwater server unshelve {server}"),
        CliAction("unshelve", "unshelve", "Restore shelved servers.", "unshelved"),
        CliAction("resize", "resize", "Change the flavor; confirm or revert it.", "resized", CONFIRM),
        CliAction("migrate", "migrate", "Move servers to another host; they are powered off for it.", "migrated",
                  CONFIRM),
        CliAction("confirm", "confirmResize", "", "confirmed"),
        CliAction("revert", "revertResize", "", "reverted"),
    )
}  # fmt: skip


def select_action(options: Namespace) -> CliAction:
    """Return the action of a command line; --confirm and --revert are actions of their own."""
    for name in ("confirm", "revert"):
        if getattr(options, name, False):
            return ACTIONS[name]
    return ACTIONS[options.verb]


def build_request(action: CliAction, options: Namespace, server_id: str, ids: dict[str, str]) -> ApiRequest:
    """Return the API request. `ids`: of the flavor and the image that the command line names."""
    shutdown = _shutdown_parameters(options) if action.name in POWERS_OFF else {}
    path = f"/servers/{server_id}"
    if action.name == "delete":
        return ApiRequest("DELETE", path + (f"?{urlencode(shutdown)}" if shutdown else ""))
    return ApiRequest("POST", f"{path}/action", {action.key: (_parameters(action, options, ids) | shutdown) or None})


def _shutdown_parameters(options: Namespace) -> dict[str, Any]:
    if options.hard_shutdown:
        return {"shutdown_type": HARD}
    if options.shutdown_timeout is not None:
        return {"shutdown_type": SOFT, "shutdown_timeout": options.shutdown_timeout}
    return {"shutdown_type": SOFT} if options.soft_shutdown else {}


def _parameters(action: CliAction, options: Namespace, ids: dict[str, str]) -> dict[str, Any]:
    """Return the part of the body that only this action has."""
    if action.name == "reboot":
        return {"type": HARD if options.hard else SOFT}
    if action.name == "resize":
        return {"flavorRef": ids["flavor"]}
    if action.name == "migrate" and options.host:
        return {"host": options.host}
    if action.name == "rescue":
        given = {"adminPass": options.password, "rescue_image_ref": ids.get("image")}
        return {key: value for key, value in given.items() if value}
    return {}
