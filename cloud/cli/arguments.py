"""The command line. Imports nothing slow, so that --help is fast."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

from cloud.arguments import count, positive_seconds, whole_seconds
from cloud.cli import VERSION, actions

FORMATS = ("table", "json", "value")
WAIT_SECONDS = 600
LISTED = ("id", "name", "status", "task_state", "power_state", "flavor", "networks", "host")
SHOWN = (
    *LISTED, "vm_state", "progress", "image", "project_id", "termination_grace_period_seconds", "shutdown", "metadata",
    "tags", "locked", "description", "created", "updated", "fault",
)  # fmt: skip
RESULTS = (
    "id", "name", "action", "result", "status", "seconds", "outcome", "request_id", "admin_password",
)  # fmt: skip
EXAMPLES = """\
examples:
  stillwater server list
  stillwater server stop web1 web2 --wait              each guest has its own grace period
  stillwater server stop web1 --shutdown-timeout 5min --wait
  stillwater server stop web1 --hard-shutdown          power off at once
  stillwater server delete web1 --soft-shutdown --wait
  stillwater server resize web1 --flavor m1.small --wait && stillwater server resize web1 --confirm
  stillwater server list -f value -c id -c status | grep ERROR
  stillwater server stop web1 --wait -f json | jq -r '.[].outcome'

clouds: from clouds.yaml (here, in ~/.config/openstack, /etc/openstack or $OS_CLIENT_CONFIG_FILE) by --os-cloud or
  $OS_CLOUD, else from OS_AUTH_URL, OS_USERNAME and so on.

exit codes: 0 done; 1 refused or failed; 2 wrong usage; 4 the wait timed out; 130 interrupted. After 4 and 130 the
  operation continues.
"""


class _PrintVersion(Action):
    """--version: reads the version of openstacksdk only when it is requested."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415  30 ms that --help does not need

        print(f"stillwater {VERSION} (openstacksdk {version('openstacksdk')})")
        parser.exit()


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """Return the arguments as attributes. Exits with 2 and a usage line when they are wrong."""
    top = ArgumentParser(
        "stillwater", description="Manage the servers of a cloud, and the grace periods of their guests.",
        epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, parents=[_cloud_option()],
    )  # fmt: skip
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="show the version and exit")
    subjects = top.add_subparsers(dest="subject", metavar="COMMAND", required=True)
    server = _add_parser(subjects, "server", "Stop, move, delete and show servers.", epilog=EXAMPLES)
    verbs = server.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {action.name: _add_action(verbs, action) for action in actions.ACTIONS.values() if action.help}
    parsers |= {"list": _add_list(verbs), "show": _add_show(verbs)}
    options = top.parse_args(argv)
    _check(options, parsers[options.verb])
    return options


def _add_action(verbs: Any, action: actions.CliAction) -> ArgumentParser:
    parser = _add_verb(verbs, action.name, action.help, "until the operation is over")
    parser.add_argument("servers", nargs="+", metavar="SERVER", help="name or id")
    _add_all_projects(parser)
    if action.name in actions.POWERS_OFF:
        _add_shutdown(parser, soft=action.name == "delete")
    if action.name == "reboot":
        parser.add_argument("--hard", "--hard-shutdown", action="store_true", help="reset without asking the guest")
    elif action.name == "rescue":
        parser.add_argument("--image", help="boot this image, name or id (default: the server's own)")
        parser.add_argument("--password", help="of the rescue system (default: a new one)")
    elif action.name == "migrate":
        parser.add_argument("--host", help="the destination (default: the scheduler selects it)")
    elif action.name == "resize":
        one = parser.add_mutually_exclusive_group(required=True)
        one.add_argument("--flavor", help="name or id of the new flavor")
        one.add_argument("--confirm", action="store_true", help="confirm a resize or a migration")
        one.add_argument("--revert", action="store_true", help="undo a resize or a migration")
    return parser


def _add_shutdown(parser: ArgumentParser, *, soft: bool) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--hard-shutdown", action="store_true", help="power off at once, without asking the guest")
    if soft:
        how.add_argument("--soft-shutdown", action="store_true", help="let the guest shut down first (default: only "
                         "where the server has its own grace period)")  # fmt: skip
    else:
        parser.set_defaults(soft_shutdown=False)
    parser.add_argument("--shutdown-timeout", type=whole_seconds, metavar="TIME", help="grace period, in seconds or "
                        "as 5min (default: that of the server, else of its image, else of the cloud)")  # fmt: skip


def _add_list(verbs: Any) -> ArgumentParser:
    parser = _add_verb(verbs, "list", "List servers.", "until no operation is in progress on any of them")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N servers (default: all, page by page)")
    parser.add_argument("--marker", metavar="ID", help="begin after this server")
    _add_all_projects(parser)
    parser.add_argument("--name", metavar="REGEX", help="only servers whose name matches")
    parser.add_argument("--status", help="only servers with this status")
    return parser


def _add_show(verbs: Any) -> ArgumentParser:
    parser = _add_verb(verbs, "show", "Show a server.", "until no operation is in progress on it")
    parser.add_argument("server", metavar="SERVER", help="name or id")
    _add_all_projects(parser)
    return parser


def _add_verb(verbs: Any, name: str, text: str, until: str) -> ArgumentParser:
    parser = _add_parser(verbs, name, text)
    parser.add_argument("--wait", action="store_true", help=f"wait {until}, and show the progress")
    parser.add_argument("--timeout", type=positive_seconds, metavar="TIME", help="the longest time to wait "
                        f"(default: {WAIT_SECONDS} s, more where guests have longer grace periods)")  # fmt: skip
    parser.add_argument("-f", "--format", choices=FORMATS, help="json and value are for programs; value: tab-separated")
    parser.add_argument("-c", "--column", action="append", dest="columns", metavar="NAME",
                        help="only this column; may be given several times")  # fmt: skip
    return parser


def _add_parser(parsers: Any, name: str, text: str, epilog: str | None = None) -> ArgumentParser:
    added: ArgumentParser = parsers.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False, parents=[_cloud_option()],
    )  # fmt: skip
    return added


def _add_all_projects(parser: ArgumentParser) -> None:
    parser.add_argument("--all-projects", action="store_true", help="servers of all projects (admins)")


def _cloud_option() -> ArgumentParser:
    """Return --os-cloud for each parser; by SUPPRESS the later parser keeps what the earlier one read."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--os-cloud", metavar="NAME", default=SUPPRESS, help="a cloud of clouds.yaml ($OS_CLOUD)")
    return parser


def _check(options: Namespace, parser: ArgumentParser) -> None:
    """Check what argparse cannot."""
    options.os_cloud = getattr(options, "os_cloud", None)
    hard, seconds = getattr(options, "hard_shutdown", False), getattr(options, "shutdown_timeout", None)
    if hard and seconds is not None:
        parser.error("--hard-shutdown gives the guest no time: give it or --shutdown-timeout, not both")
    if (hard or seconds is not None) and (getattr(options, "confirm", False) or getattr(options, "revert", False)):
        parser.error("--confirm and --revert shut nothing down: leave out --hard-shutdown and --shutdown-timeout")
    columns = {"list": LISTED, "show": SHOWN}.get(options.verb, RESULTS)
    unknown = sorted(set(options.columns or ()) - set(columns))
    if unknown:  # before any request
        parser.error(f"there is no column {', '.join(unknown)}; there are {', '.join(columns)}")
    if options.timeout is not None and not options.wait:
        parser.error("--timeout needs --wait")
