"""The actions of the command line, and the API request of each."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

GRACE = {"stop", "rescue", "resize", "shelve", "migrate", "delete"}  # actions that power a guest off
HARD, SOFT = "HARD", "SOFT"


@dataclass(frozen=True, slots=True)
class CliAction:
    """An action. `key` names it in POST /servers/{id}/action; "" is a request of its own."""

    name: str
    key: str
    help: str
    past: str
    then: str = ""  # advice for what comes next, with {server}


@dataclass(frozen=True, slots=True)
class Request:
    """The API request for one server."""

    method: str
    path: str
    body: Any = None


CONFIRM = "When it is well there: stillwater server resize --confirm {server}, else --revert"
ACTIONS = {
    verb.name: verb
    for verb in (
        CliAction("start", "os-start", "Power servers on.", "started"),
        CliAction("stop", "os-stop", "Power servers off; their guests get their grace.", "stopped"),
        CliAction("reboot", "reboot", "Restart servers; soft becomes hard when the guest does not obey.", "rebooted"),
        CliAction("delete", "", "Delete servers.", "deleted"),
        CliAction("rescue", "rescue", "Boot another disk, to repair the server's own.", "in rescue",
             "Back to its own disk: stillwater server unrescue {server}"),
        CliAction("unrescue", "unrescue", "End a rescue.", "back on its own disk"),
        CliAction("shelve", "shelve", "Keep servers as images and free their hosts.", "shelved",
             "Back: stillwater server unshelve {server}"),
        CliAction("unshelve", "unshelve", "Bring shelved servers back.", "unshelved"),
        CliAction("resize", "resize", "Give servers another flavor; confirm or revert it.", "resized", CONFIRM),
        CliAction("migrate", "migrate", "Take servers to another host, powered off meanwhile.", "migrated", CONFIRM),
        CliAction("confirm", "confirmResize", "", "confirmed"),
        CliAction("revert", "revertResize", "", "reverted"),
    )
}  # fmt: skip


def of(words: Namespace) -> CliAction:
    """Return the action of a command line; --confirm and --revert are actions of their own."""
    for name in ("confirm", "revert"):
        if getattr(words, name, False):
            return ACTIONS[name]
    return ACTIONS[words.verb]


def request(verb: CliAction, words: Namespace, server_id: str, named: dict[str, str]) -> Request:
    """Return the API request. `named`: ids of the flavor and the image that the command line names."""
    grace = _grace(words) if verb.name in GRACE else {}
    path = f"/servers/{server_id}"
    if verb.name == "delete":
        return Request("DELETE", path + (f"?{urlencode(grace)}" if grace else ""))
    return Request("POST", f"{path}/action", {verb.key: (_own(verb, words, named) | grace) or None})


def _grace(words: Namespace) -> dict[str, Any]:
    if words.hard_shutdown:
        return {"shutdown_type": HARD}
    if words.shutdown_timeout is not None:
        return {"shutdown_type": SOFT, "shutdown_timeout": words.shutdown_timeout}
    return {"shutdown_type": SOFT} if words.soft_shutdown else {}


def _own(verb: CliAction, words: Namespace, named: dict[str, str]) -> dict[str, Any]:
    """Return the part of the body that only this action has."""
    if verb.name == "reboot":
        return {"type": HARD if words.hard else SOFT}
    if verb.name == "resize":
        return {"flavorRef": named["flavor"]}
    if verb.name == "migrate" and words.host:
        return {"host": words.host}
    if verb.name == "rescue":
        given = {"adminPass": words.password, "rescue_image_ref": named.get("image")}
        return {key: value for key, value in given.items() if value}
    return {}
