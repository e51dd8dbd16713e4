"""Wait for requests, up to a deadline, and show their progress. The operations do not depend on the wait."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

from cloud.cli.arguments import WAIT_SECONDS
from cloud.cli.client import REQUEST_SECONDS, Client
from cloud.cli.errors import ServiceUnavailable
from cloud.cli.requests import Result, ServerRequest, ServerState
from cloud.terminal import Bars, Change, TerminalConsole, View

QUICK, SLOW = 0.5, 1.0  # seconds between two polls: in the first QUICK_FOR seconds, and later
QUICK_FOR = 10.0
AFTER_GRACE = 60.0  # for the work after a guest is off: move disks, store images


def follow(client: Client, requests: list[ServerRequest], timeout: float | None) -> None:
    """Wait until each request has ended or timed out. Without a `timeout` a guest's grace period extends the limit.

    The progress goes to standard error: standard output has only the result.
    """
    watched = [request for request in requests if request.is_open]
    view = View(TerminalConsole(sys.stderr), lambda: _render(watched), lambda: _changes(watched), animated=True)
    try:
        _poll(client, watched, timeout, view)
    finally:
        view.close()
    for request in watched:
        if request.is_open:
            state = request.state.text or "nothing was read"
            request.end(Result.TIMED_OUT, f"{state} after {request.seconds:.0f} s; the operation continues",
                        f"Continue to wait: stillwater server show {request.server.id} --wait")  # fmt: skip


def _poll(client: Client, watched: list[ServerRequest], timeout: float | None, view: View) -> None:
    began = time.monotonic()
    limit = began + (timeout or WAIT_SECONDS)
    while True:
        for request in (one for one in watched if one.is_open):
            answered = _read(client, request, max(1.0, min(limit - time.monotonic(), REQUEST_SECONDS)))
            view.refresh()
            if not answered:  # the API does not answer for the others either
                break
            if timeout is None and request.state.seconds_left is not None:
                limit = max(limit, time.monotonic() + request.state.seconds_left + AFTER_GRACE)
        left = limit - time.monotonic()
        if left <= 0 or not any(request.is_open for request in watched):
            return
        time.sleep(min(left, QUICK if time.monotonic() - began < QUICK_FOR else SLOW))


def _render(watched: list[ServerRequest]) -> Bars:
    return Bars([
        (one.title, one.state.share if one.is_open else 1.0, one.state.text if one.is_open else one.sentence())
        for one in watched
    ])  # fmt: skip


def _changes(watched: list[ServerRequest]) -> list[Change]:
    return [(one.server.id, one.state.change, f"{one.title}: {one.state.text}" if one.state.text else "")
            for one in watched if one.is_open]  # fmt: skip


def _read(client: Client, request: ServerRequest, seconds: float) -> bool:
    """Read the instance action and then the server; return whether the API answered."""
    try:  # in this order: the server then shows the effects of an action that is over
        action = client.read_action(request.server.id, request.request_id, seconds) if request.request_id else None
        server = client.read_server(request.server.id, seconds)
    except ServiceUnavailable as error:  # the operation continues without the API, and so does the wait
        request.state = replace(request.state, unreachable=str(error))
        return False
    outcome = request.state.shutdown.get("outcome", "")
    request.state = ServerState.from_api(server) if server else ServerState("DELETED")
    if outcome and not request.state.shutdown:
        request.state.shutdown = {"outcome": outcome}  # keep it after the server stops showing it
    _end_if_over(request, server, action)
    return True


def _end_if_over(request: ServerRequest, server: dict[str, Any] | None, action: dict[str, Any] | None) -> None:
    if server is None and (request.action is None or request.action.name != "delete"):
        request.end(Result.FAILED, "it was deleted meanwhile")
        return
    events = (action or {}).get("events") or []
    if events and server is not None:
        if not all(event.get("finish_time") for event in events):
            return
    elif server is not None and request.state.task:
        return
    details = _details(events) or request.state.shutdown.get("outcome", "")
    if request.action is not None and _failed(request, action):
        fault = ((server or {}).get("fault") or {}).get("message", "")
        advice = f"Its steps: openstack server event show {request.server.id} {request.request_id}"
        request.end(Result.FAILED, fault or details or "the operation did not succeed", advice)
    else:
        request.end(Result.DONE, details)


def _failed(request: ServerRequest, action: dict[str, Any] | None) -> bool:
    """Return whether the action failed. Without an instance action, status ERROR means that it did."""
    if action is None:
        return request.state.status == "ERROR"
    events = action.get("events") or [{}]
    return action.get("message") == "Error" or events[-1].get("result") == "Error"


def _details(events: list[dict[str, Any]]) -> str:
    """Return what the steps reported, each text once. Details are for admins, shutdown outcomes for owners."""
    details: list[str] = []
    for event in events:
        for text in (event.get("details"), (event.get("shutdown") or {}).get("outcome")):
            if text and not any(text in earlier for earlier in details):
                details.append(text)
    return "; ".join(details)
