"""Wait for requests, up to a deadline. The operations do not depend on the wait."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from cloud.cli.arguments import WAIT_SECONDS
from cloud.cli.client import REQUEST_SECONDS, Client
from cloud.cli.errors import ServiceUnavailable
from cloud.cli.progress import ProgressOutput
from cloud.cli.requests import Result, ServerRequest, ServerState, still_open

QUICK, SLOW = 0.5, 1.0  # seconds between two polls: at first, and after A_WHILE
A_WHILE = 10.0
AFTER_GRACE = 60.0  # for the work after a guest is off: move disks, store images


def follow(remote: Client, orders: list[ServerRequest], timeout: float | None, screen: ProgressOutput) -> None:
    """Wait until each request has ended or timed out. Without a `timeout` a guest's grace period extends the limit."""
    began = time.monotonic()
    limit = began + (timeout or WAIT_SECONDS)
    while True:
        for order in list(still_open(orders)):
            seen = _look(remote, order, max(1.0, min(limit - time.monotonic(), REQUEST_SECONDS)))
            screen.show(order)
            if not seen:  # the API does not answer for the others either
                break
            if timeout is None and order.look.left is not None:
                limit = max(limit, time.monotonic() + order.look.left + AFTER_GRACE)
        left = limit - time.monotonic()
        if left <= 0 or not any(still_open(orders)):
            break
        time.sleep(min(left, QUICK if time.monotonic() - began < A_WHILE else SLOW))
    for order in still_open(orders):
        order.end(Result.TIMED_OUT, f"{order.look.words or 'nothing seen'} after {order.seconds:.0f} s; it goes on",
                  f"Wait on: stillwater server show {order.server.id} --wait")  # fmt: skip


def _look(remote: Client, order: ServerRequest, seconds: float) -> bool:
    """Read the instance action and then the server; return whether the API answered."""
    try:  # in this order: the server then shows the effects of an action that is over
        action = remote.action(order.server.id, order.request_id, seconds) if order.request_id else None
        server = remote.show(order.server.id, seconds)
    except ServiceUnavailable as away:  # the operation goes on without the API, and so does the wait
        order.look = replace(order.look, away=str(away))
        return False
    outcome = order.look.shutdown.get("outcome", "")
    order.look = ServerState.of(server) if server else ServerState("DELETED")
    if outcome and not order.look.shutdown:
        order.look.shutdown = {"outcome": outcome}  # keep it after the server stops showing it
    _judge(order, server, action)
    return True


def _judge(order: ServerRequest, server: dict[str, Any] | None, action: dict[str, Any] | None) -> None:
    """End the request if it is over."""
    deletes = order.verb is not None and order.verb.name == "delete"
    if server is None and not deletes:
        order.end(Result.FAILED, "it was deleted meanwhile")
        return
    events = (action or {}).get("events") or []
    if events and server is not None:
        if not all(event.get("finish_time") for event in events):
            return
    elif server is not None and order.look.task:
        return
    said = _details(events) or order.look.shutdown.get("outcome", "")
    if order.verb is not None and _failed(order, action):
        fault = ((server or {}).get("fault") or {}).get("message", "")
        advice = f"Its steps: openstack server event show {order.server.id} {order.request_id}"
        order.end(Result.FAILED, fault or said or "the operation did not succeed", advice)
    else:
        order.end(Result.DONE, said)


def _failed(order: ServerRequest, action: dict[str, Any] | None) -> bool:
    """Return whether the action failed. Without an instance action, status ERROR means that it did."""
    if action is None:
        return order.look.status == "ERROR"
    events = action.get("events") or [{}]
    return action.get("message") == "Error" or events[-1].get("result") == "Error"


def _details(events: list[dict[str, Any]]) -> str:
    """Return what the steps reported, each text once. Details are for admins, shutdown outcomes for owners."""
    said: list[str] = []
    for event in events:
        for words in (event.get("details"), (event.get("shutdown") or {}).get("outcome")):
            if words and not any(words in earlier for earlier in said):
                said.append(words)
    return "; ".join(said)
