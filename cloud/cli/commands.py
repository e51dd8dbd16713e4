"""The commands: send requests, wait for them, print results."""

from __future__ import annotations

import sys
from argparse import Namespace

from cloud.cli import actions, errors, output
from cloud.cli.arguments import LISTED, RESULTS
from cloud.cli.client import Client, KnownServer, RequestRefused
from cloud.cli.errors import CliError, ServiceUnavailable
from cloud.cli.requests import Result, ServerRequest, worst_exit_code
from cloud.cli.wait import follow
from cloud.terminal import TerminalConsole


def run(options: Namespace) -> int:
    """Run one command and return its exit code. Raises CliError where no operation was begun."""
    client = Client(options.os_cloud)
    if options.verb == "list":
        return _list(client, options)
    if options.verb == "show":
        return _show(client, options)
    return _act(client, options)


def _act(client: Client, options: Namespace) -> int:
    """Find all servers before a request is sent, so that a typing error changes nothing."""
    action, ids = actions.select_action(options), {}
    found = [client.find_server(name, all_projects=options.all_projects) for name in options.servers]
    if getattr(options, "flavor", None):
        ids["flavor"] = client.find_flavor(options.flavor)
    if getattr(options, "image", None):
        ids["image"] = client.find_image(options.image)
    requests = [ServerRequest(server, action) for server in dict.fromkeys(found)]
    try:
        for request in requests:
            _send(client, request, actions.build_request(action, options, request.server.id, ids))
        if options.wait:
            follow(client, requests, options.timeout)
    except KeyboardInterrupt:
        _interrupt(requests)
    _report(requests, options)
    return worst_exit_code(requests)


def _send(client: Client, request: ServerRequest, call: actions.ApiRequest) -> None:
    """Send the request once. Without a response it may or may not have arrived."""
    try:
        response = client.send(call.method, call.path, call.body)
    except RequestRefused as refused:
        request.request_id = refused.request_id
        advice = f"See its state: stillwater server show {request.server.id}"
        if refused.status == 400 and request.action:
            advice = f"See the options: stillwater server {request.action.name} --help"
        request.end(Result.REFUSED, str(refused), refused.advice or advice)
    except ServiceUnavailable as error:
        advice = f"It may have been accepted all the same: stillwater server show {request.server.id} --wait"
        request.end(Result.FAILED, str(error), advice)
    else:
        request.result, request.request_id = Result.ACCEPTED, response.request_id
        request.password = str(response.body.get("adminPass") or "")


def _interrupt(requests: list[ServerRequest]) -> None:
    """End the wait: operations that were accepted continue; the other requests may not have been sent."""
    for request in requests:
        if request.is_open:
            request.end(Result.INTERRUPTED, "the operation continues",
                        f"Continue to wait: stillwater server show {request.server.id} --wait")  # fmt: skip
        elif request.result is Result.WAITING:
            request.end(Result.INTERRUPTED, "it may not have been requested",
                        f"See its state: stillwater server show {request.server.id}")  # fmt: skip


def _report(requests: list[ServerRequest], options: Namespace) -> None:
    """Print results on standard output, and failures and advice on standard error."""
    out, err = TerminalConsole(sys.stdout), TerminalConsole(sys.stderr)
    if options.format or options.columns:
        output.print_rows([request.to_row() for request in requests], RESULTS, options)
    for request in requests:
        succeeded = request.result in (Result.DONE, Result.ACCEPTED)
        if not (succeeded and (options.format or options.columns)):
            (out if succeeded else err).say(request.sentence())
        if request.password and not options.format:
            out.say(f"  password: {request.password}")
        advice = request.advice
        if request.action and request.result is Result.DONE:
            advice = request.action.next_step.format(server=request.server.id)
        if advice:
            err.say(f"  {advice}")


def _list(client: Client, options: Namespace) -> int:
    query = {"name": options.name, "status": options.status, "marker": options.marker}
    query = {key: value for key, value in query.items() if value}
    query |= {"all_tenants": "1"} if options.all_projects else {}
    servers = list(client.list_servers(query, options.limit))
    code = errors.DONE
    if options.wait:
        busy = [server for server in servers if server.get("OS-EXT-STS:task_state")]
        code = _wait_until_idle(client, [KnownServer(one["id"], one.get("name", "")) for one in busy], options)
        servers = list(client.list_servers(query, options.limit))
    rows = [output.to_row(server) for server in servers]
    output.print_rows(rows, LISTED, options)
    if options.limit and len(rows) >= options.limit:
        print(f"There may be more: --marker {rows[-1]['id']}", file=sys.stderr)
    return code


def _show(client: Client, options: Namespace) -> int:
    server = client.find_server(options.server, all_projects=options.all_projects)
    code = _wait_until_idle(client, [server], options) if options.wait else errors.DONE
    shown = client.read_server(server.id)
    if shown is None:
        raise CliError(f"server {options.server!r} was deleted", "See which there are: stillwater server list")
    output.print_row(output.to_full_row(shown), options)
    return code


def _wait_until_idle(client: Client, servers: list[KnownServer], options: Namespace) -> int:
    """Wait until the servers have no task, of any user. A server that is deleted meanwhile counts as idle."""
    watched = [ServerRequest(server, result=Result.ACCEPTED) for server in servers]
    try:
        follow(client, watched, options.timeout)
    except KeyboardInterrupt:
        _interrupt(watched)
    late = [request for request in watched if request.result in (Result.TIMED_OUT, Result.INTERRUPTED)]
    for request in late:
        TerminalConsole(sys.stderr).say(request.sentence())
    return worst_exit_code(late)
