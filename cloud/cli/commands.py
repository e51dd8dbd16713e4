"""The commands: send requests, wait for them, print results."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from cloud.cli import actions, errors, output, progress, requests
from cloud.cli.arguments import LISTED, RESULTS
from cloud.cli.client import Client, KnownServer, RequestRefused
from cloud.cli.errors import CliError, ServiceUnavailable
from cloud.cli.requests import Result, ServerRequest
from cloud.cli.sanitize import plain
from cloud.cli.wait import follow


def run(words: Namespace) -> int:
    """Run one command and return its exit code. Raises CliError where nothing was begun."""
    remote = Client(words.os_cloud)
    if words.verb == "list":
        return _list(remote, words)
    if words.verb == "show":
        return _show(remote, words)
    return _act(remote, words)


def _act(remote: Client, words: Namespace) -> int:
    """Find all servers before a request is sent, so that a typing error changes nothing."""
    verb, named = actions.of(words), {}
    found = [remote.server(word, all_projects=words.all_projects) for word in words.servers]
    if getattr(words, "flavor", None):
        named["flavor"] = remote.flavor(words.flavor)
    if getattr(words, "image", None):
        named["image"] = remote.image(words.image)
    asked = [ServerRequest(server, verb) for server in dict.fromkeys(found)]
    try:
        for order in asked:
            _ask(remote, order, actions.request(verb, words, order.server.id, named))
        if words.wait:
            _wait(remote, asked, words)
    except KeyboardInterrupt:
        _interrupt(asked)
    _tell(asked, words)
    return requests.exit_code(asked)


def _ask(remote: Client, order: ServerRequest, request: actions.Request) -> None:
    """Send the request once. Without an answer it may or may not have arrived."""
    try:
        answer = remote.ask(request.method, request.path, request.body)
    except RequestRefused as refused:
        order.request_id = refused.request_id
        advice = f"See what goes on with it: stillwater server show {order.server.id}"
        if refused.status == 400 and order.verb:
            advice = f"What can be said: stillwater server {order.verb.name} --help"
        order.end(Result.REFUSED, str(refused), refused.advice or advice)
    except ServiceUnavailable as away:
        advice = f"It may have been accepted all the same: stillwater server show {order.server.id} --wait"
        order.end(Result.FAILED, str(away), advice)
    else:
        order.result, order.request_id = Result.ACCEPTED, answer.request_id
        order.password = str(answer.body.get("adminPass") or "")


def _wait(remote: Client, asked: list[ServerRequest], words: Namespace) -> None:
    with progress.opened(asked) as shown:
        follow(remote, asked, words.timeout, shown)


def _interrupt(asked: list[ServerRequest]) -> None:
    """End the wait: requests that were sent go on; the others may not have been sent."""
    for order in asked:
        if order.result in (Result.ACCEPTED, Result.WAITING):
            was_asked = order.is_open
            order.end(
                Result.INTERRUPTED, "it goes on" if was_asked else "it may not have been asked",
                f"Look: stillwater server show {order.server.id}{' --wait' if was_asked else ''}",
            )  # fmt: skip


def _tell(asked: list[ServerRequest], words: Namespace) -> None:
    """Print results on standard output, and failures and advice on standard error."""
    if words.format or words.columns:
        output.many([order.row() for order in asked], RESULTS, words)
    for order in asked:
        well = order.result in (Result.DONE, Result.ACCEPTED)
        if not (well and (words.format or words.columns)):
            print(plain(order.sentence()), file=sys.stdout if well else sys.stderr)
        if order.password and not words.format:
            print(f"  password: {plain(order.password)}")
        then = order.verb.then.format(server=order.server.id) if order.verb and order.result is Result.DONE else ""
        if order.advice or then:
            print(f"  {order.advice or then}", file=sys.stderr)


def _list(remote: Client, words: Namespace) -> int:
    query = {"name": words.name, "status": words.status, "marker": words.marker}
    query |= {"all_tenants": "1" if words.all_projects else None}
    asked = {key: value for key, value in query.items() if value}
    servers = list(remote.servers(asked, words.limit))
    code = errors.DONE
    if words.wait:
        busy = [server for server in servers if server.get("OS-EXT-STS:task_state")]
        code = _until_idle(remote, [KnownServer(server["id"], server.get("name", "")) for server in busy], words)
        servers = list(remote.servers(asked, words.limit))
    rows = [output.listed(server) for server in servers]
    output.many(rows, LISTED, words)
    if words.limit and len(rows) >= words.limit:
        print(f"There may be more: --marker {rows[-1]['id']}", file=sys.stderr)
    return code


def _show(remote: Client, words: Namespace) -> int:
    server = remote.server(words.server, all_projects=words.all_projects)
    code = _until_idle(remote, [server], words) if words.wait else errors.DONE
    shown: dict[str, Any] | None = remote.show(server.id)
    if shown is None:
        raise CliError(f"server {words.server!r} was deleted", "See which there are: stillwater server list")
    output.one(output.shown(shown), words)
    return code


def _until_idle(remote: Client, servers: list[KnownServer], words: Namespace) -> int:
    """Wait until the servers have no task, of any user. A server that is deleted meanwhile counts as idle."""
    watched = [ServerRequest(server, result=Result.ACCEPTED) for server in servers]
    try:
        _wait(remote, watched, words)
    except KeyboardInterrupt:
        _interrupt(watched)
    late = [order for order in watched if order.result in (Result.TIMED_OUT, Result.INTERRUPTED)]
    for order in late:
        print(plain(order.sentence()), file=sys.stderr)
    return requests.exit_code(late)
