"""The command line. Imports nothing slow, so that --help is fast."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

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
  stillwater server stop web1 web2 --wait              each guest gets its own grace
  stillwater server stop web1 --shutdown-timeout 300 --wait
  stillwater server stop web1 --hard-shutdown          pull the plug
  stillwater server delete web1 --soft-shutdown --wait
  stillwater server resize web1 --flavor m1.small --wait && stillwater server resize web1 --confirm
  stillwater server list -f value -c id -c status | grep ERROR
  stillwater server stop web1 --wait -f json | jq -r '.[].outcome'

clouds: from clouds.yaml (here, in ~/.config/openstack, /etc/openstack or $OS_CLIENT_CONFIG_FILE) by --os-cloud or
  $OS_CLOUD, else from OS_AUTH_URL, OS_USERNAME and so on.

exit codes: 0 done; 1 refused or failed; 2 wrong usage; 4 the wait timed out; 130 interrupted. After 4 and 130 the
  operation goes on.
"""


class _Installed(Action):
    """--version: reads the version of openstacksdk only when it is asked for."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415  30 ms that --help does not need

        print(f"stillwater {VERSION} (openstacksdk {version('openstacksdk')})")
        parser.exit()


def parse(argv: Sequence[str] | None = None) -> Namespace:
    """Return the arguments as attributes. Exits with 2 and a usage line when they are wrong."""
    top = _parser("stillwater", "Servers of a cloud, and the grace of their guests.", parents=[_everywhere()])
    top.add_argument("--version", action=_Installed, nargs=0, help="show the version and exit")
    subjects = top.add_subparsers(dest="subject", metavar="COMMAND", required=True)
    server = _add(subjects, "server", "Stop, move, delete and look at servers.")
    by_verb = server.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {verb.name: _acting(by_verb, verb) for verb in actions.ACTIONS.values() if verb.help}
    parsers |= {"list": _listing(by_verb), "show": _showing(by_verb)}
    words = top.parse_args(argv)
    _check(words, parsers[words.verb])
    return words


def _acting(by_verb: Any, verb: actions.CliAction) -> ArgumentParser:
    parser = _add(by_verb, verb.name, verb.help, parents=[_waiting("until it is over"), _shown()])
    parser.add_argument("servers", nargs="+", metavar="SERVER", help="name or id")
    parser.add_argument("--all-projects", action="store_true", help="look for names in all projects (admins)")
    if verb.name in actions.GRACE:
        _grace(parser, of_its_own="its own grace period" if verb.name == "delete" else "")
    if verb.name == "reboot":
        parser.add_argument("--hard", "--hard-shutdown", action="store_true", help="reset it, without asking the guest")
    elif verb.name == "rescue":
        parser.add_argument("--image", help="boot this image, name or id (default: the server's own)")
        parser.add_argument("--password", help="for the rescue system (default: one is made)")
    elif verb.name == "migrate":
        parser.add_argument("--host", help="take it there (default: the scheduler picks)")
    elif verb.name == "resize":
        one = parser.add_mutually_exclusive_group(required=True)
        one.add_argument("--flavor", help="name or id of the new flavor")
        one.add_argument("--confirm", action="store_true", help="keep what a resize or a migration made")
        one.add_argument("--revert", action="store_true", help="undo a resize or a migration")
    return parser


def _grace(parser: ArgumentParser, of_its_own: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--hard-shutdown", action="store_true", help="power off at once, without asking the guest")
    if of_its_own:
        how.add_argument("--soft-shutdown", action="store_true", help="let the guest shut down first (default: only "
                         "where a server has a grace period of its own)")  # fmt: skip
    else:
        parser.set_defaults(soft_shutdown=False)
    parser.add_argument("--shutdown-timeout", type=_whole, metavar="N", help="seconds the guest gets to shut down "
                        "(default: its own grace, else its image's, else the cloud's)")  # fmt: skip


def _listing(by_verb: Any) -> ArgumentParser:
    parser = _add(by_verb, "list", "List servers.", parents=[_waiting("until nothing goes on with any"), _shown()])
    parser.add_argument("--limit", type=_positive, metavar="N", help="at most so many (default: all, page by page)")
    parser.add_argument("--marker", metavar="ID", help="begin after this server")
    parser.add_argument("--all-projects", action="store_true", help="of all projects (admins)")
    parser.add_argument("--name", metavar="REGEX", help="only those whose name matches")
    parser.add_argument("--status", help="only those with this status")
    return parser


def _showing(by_verb: Any) -> ArgumentParser:
    parser = _add(by_verb, "show", "Show a server.", parents=[_waiting("until nothing goes on with it"), _shown()])
    parser.add_argument("server", metavar="SERVER", help="name or id")
    parser.add_argument("--all-projects", action="store_true", help="look for names in all projects (admins)")
    return parser


def _parser(name: str, text: str, **more: Any) -> ArgumentParser:
    return ArgumentParser(
        name, description=text, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False, **more
    )


def _add(parsers: Any, name: str, text: str, parents: Sequence[ArgumentParser] = ()) -> Any:
    end = EXAMPLES if name == "server" else None
    return parsers.add_parser(
        name, help=text, description=text, epilog=end, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
        parents=[*parents, _everywhere()],
    )  # fmt: skip


def _everywhere() -> ArgumentParser:
    """Return options for before and after the verb; by SUPPRESS the later parser keeps what the earlier one read."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--os-cloud", metavar="NAME", default=SUPPRESS, help="a cloud of clouds.yaml ($OS_CLOUD)")
    return parser


def _waiting(until: str) -> ArgumentParser:
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--wait", action="store_true", help=f"wait {until}, and show how it goes")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS",
                        help=f"wait no longer (default: {WAIT_SECONDS}, more where guests are given more)")  # fmt: skip
    return parser


def _shown() -> ArgumentParser:
    parser = ArgumentParser(add_help=False)
    parser.add_argument("-f", "--format", choices=FORMATS, help="json and value are for programs; value: tabs between")
    parser.add_argument("-c", "--column", action="append", dest="columns", metavar="NAME",
                        help="only this column; may be given several times")  # fmt: skip
    return parser


def _check(words: Namespace, parser: ArgumentParser) -> None:
    """Check what argparse cannot."""
    words.os_cloud = getattr(words, "os_cloud", None)
    hard, seconds = getattr(words, "hard_shutdown", False), getattr(words, "shutdown_timeout", None)
    if hard and seconds is not None:
        parser.error("--hard-shutdown gives the guest no time; leave out --shutdown-timeout, or --hard-shutdown")
    if (hard or seconds is not None) and (getattr(words, "confirm", False) or getattr(words, "revert", False)):
        parser.error("--confirm and --revert take no word about the shutdown; leave it out")
    columns = {"list": LISTED, "show": SHOWN}.get(words.verb, RESULTS)
    unknown = sorted(set(words.columns or ()) - set(columns))
    if unknown:  # before any request
        parser.error(f"there is no column {', '.join(unknown)}; there are {', '.join(columns)}")
    if words.timeout is not None and not words.wait:
        parser.error("--timeout is for --wait; say both, or neither")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of seconds; 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is no number; 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds < 1e9:  # also refuses NaN
        raise ArgumentTypeError(f"{text!r} is no time to wait; seconds, more than 0")
    return seconds
