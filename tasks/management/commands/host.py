"""manage.py host: start, stop, restart, drain, undrain, shutdown-guests, status, list.

Exit codes: 0 done; 1 wrong usage, or an unknown host; 2 it still drains, which continues; 3 a host or its cell does
not answer (status: is not up); 4 it ended with operations unfinished, which the journal keeps, or with guests on; 5 a
process did not start; 6 another operator took the request back meanwhile; 130 interrupted: what was requested
continues. Of several hosts the highest code counts.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from cloud import arguments, env
from tasks.management import drain, processes, shutdown_guests, status
from tasks.management.options import HostCommand
from tasks.management.outcome import CANCELLED, INTERRUPTED, SILENT, USAGE, CommandRefused
from tasks.management.output import FORMATS, Output
from tasks.worker_process import BadEnvFile

CODES = " ".join(line.strip() for line in (__doc__ or "").split("\n\n", 1)[1].splitlines())
VERBS: dict[str, tuple[str, Callable[[HostCommand], int], str]] = {  # help, function, what Ctrl-C leaves
    "start": ("Start the process on this machine, and wait until it is up.", processes.start,
              "What was started continues to start. Follow it: the same command."),
    "stop": ("Send SIGTERM to the process on this machine, and follow its drain to the end.", processes.stop,
             "They drain and end all the same. Follow it: the same command."),
    "restart": ("Stop and start, one host after the other; wait until each is up.", processes.restart,
                "A process that was signalled ends, and is not started. Continue: the same command."),
    "drain": ("Take no new work and finish what has begun, with --migrate when the servers have left; stay so until "
              "undrain.", drain.drain,
              "The drain continues. Follow it: the same command; take it back: host undrain {names}"),
    "undrain": ("Take the drain back, and wait until the host takes work, with --return until its servers are back.",
                drain.undrain, "The request to take work stays. Follow it: the same command."),
    "shutdown-guests": ("Shut all guests of a host down, the lowest priority first, each with its own grace period. "
                        "Those that were running are started when the host is back.", shutdown_guests.shutdown_guests,
                        "The host continues. Follow it: the same command; keep the waiting guests on: host undrain "
                        "{names}"),
    "status": ("Show one page: what was requested, the state, queues, operations.", status.show_status, ""),
    "list": ("List the hosts of all cells, a page at a time.", status.list_hosts, ""),
}  # fmt: skip
PARALLEL = {  # 0: the default of what carries the request out
    "drain": (0, "servers leave (default: 4), or guests go off (default: 16), at a time"),
    "undrain": (0, "servers are moved at a time; default: 4"), "stop": (0, "guests go off at a time; default: 16"),
    "shutdown-guests": (0, "guests go off at a time; default: 16"), "restart": (1, "hosts at a time; default: 1"),
}  # fmt: skip
FOLLOWS = ("start", "stop", "restart", "drain", "undrain", "shutdown-guests")


class Command(BaseCommand):
    """Arguments and exit codes; what each verb does is in tasks/management."""

    help = (
        "Start, stop, restart, drain, undrain and show hosts (also conductors and schedulers); shut down their guests. "
        f"{CODES}"
    )
    requires_system_checks: list[str] = []  # a host's own machine has no global database

    def add_arguments(self, parser: CommandParser) -> None:
        """Add a subparser for each verb, with its options."""
        _end_with_usage(parser)
        parser.epilog = CODES
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, (meaning, _, _) in VERBS.items():
            verb = verbs.add_parser(name, help=meaning, description=meaning, epilog=CODES)
            _end_with_usage(verb)
            _add_options(name, verb)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb; every failure ends in a sentence and an exit code."""
        # a down cell is in the table; a log line in between would break the table
        logging.getLogger("cells").setLevel(logging.ERROR)
        try:
            code = self._run(options)
        except CommandRefused as exc:
            self._end(exc.code, str(exc))
        except BadEnvFile as exc:
            self._end(USAGE, f"{exc}. Correct the file, and run this again.")
        except PermissionError as exc:
            self._end(USAGE, f"{exc}. Run this as the user of the workers.")
        except DatabaseError as exc:
            self._end(SILENT, f"The global database does not answer ({type(exc).__name__}). Is it up, and is "
                      "STILLWATER_ENV_FILE the right one? On the machine of a host: its own env file.")  # fmt: skip
        except BrokenPipeError:  # `| head` has closed the pipe; what was requested continues
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(INTERRUPTED)
        except KeyboardInterrupt:
            if options.get("migrate") and self._confirm_withdrawal():
                self._run(options | {"verb": "undrain"})
                sys.exit(CANCELLED)
            left = VERBS[options["verb"]][2].format(names=" ".join(options.get("hosts") or ()))
            self._end(INTERRUPTED, f"Interrupted. {left}".rstrip())
        if code:
            sys.exit(code)

    def _run(self, options: dict[str, Any]) -> int:
        given = {field.name: options[field.name] for field in fields(HostCommand) if field.name in options}
        env_dir = Path(options.get("env_dir") or env.get("STILLWATER_NODE_DIR") or env.state_dir() / "env").resolve()
        output = Output(options["form"], self.stdout)
        names = tuple(options.get("hosts") or ())
        own = {"output": output, "errors": self.stderr, "names": names, "state": env.state_dir(), "env_dir": env_dir}
        command = HostCommand(**given | own)
        try:
            return VERBS[options["verb"]][1](command)
        finally:
            output.close()

    def _confirm_withdrawal(self) -> bool:
        """Ask whether to take the drain back, on a terminal only."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        question = "Interrupted. Take the drain back? Servers that are being moved arrive, others stay. [y/N] "
        self.stdout.write(question, ending="")
        self.stdout.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _end(self, code: int, sentence: str) -> NoReturn:
        self.stderr.write(sentence)
        sys.exit(code)


def _add_options(verb: str, parser: argparse.ArgumentParser) -> None:
    add, flag = parser.add_argument, partial(parser.add_argument, action="store_true")
    add("-f", "--format", dest="form", choices=FORMATS, default="table", help="table (on a terminal live, else a line "
        "for each change); json: one document at the end; jsonl: a line for each change.")  # fmt: skip
    if verb == "list":
        add("--limit", type=arguments.count_to_1000, default=100, help="Hosts on a page, at most 1000; default: 100.")
        add("--marker", default="", help="Begin after this host.")
        flag("--all", dest="everything", help="Also conductors and schedulers.")
        return
    add("hosts", nargs="+", metavar="HOST", help="Also conductor-cell1, scheduler …")
    add("--env-dir", type=Path, help="Folder of the env files <HOST>.env of this machine's workers; default: "
        "STILLWATER_NODE_DIR, else env in the state folder.")  # fmt: skip
    if verb in FOLLOWS:
        add("--interval", type=arguments.positive_seconds, default=1.0, help="Seconds between two looks; default: 1.")
    if verb in ("drain", "undrain", "shutdown-guests"):
        add("--wait-for-answer", dest="patience", type=arguments.positive_seconds, default=30.0, metavar="SECONDS",
            help="Give up when the record of the host has not changed for so long; more than its heartbeat interval. "
            "Default: 30.")  # fmt: skip
    if verb == "drain":
        _add_drain(parser)
    elif verb == "shutdown-guests":
        add("--timeout", dest="seconds", type=arguments.seconds, help="The time for all guests together: those that "
            "are on then are forced off. Default: each has its own grace period.")  # fmt: skip
        flag("--force", help="Also of a host that takes work: servers may arrive.")
        flag("--no-wait", help="Write the request, and do not follow.")
    elif verb == "undrain":
        flag("--return", dest="bring_back", help="Move the servers back that a drain moved away, and that are still "
             "where it moved them.")  # fmt: skip
    elif verb in ("stop", "restart"):
        add("--timeout", dest="seconds", type=arguments.seconds, help="How long to follow; 0: to the end. Default: the "
            "graceful timeout of the host, and a little more.")  # fmt: skip
        flag("--force", help="When that time is over, end it by SIGQUIT, then SIGKILL.")
    if verb == "stop":
        flag("--shutdown-guests", help="First its guests go off, each with its own grace period.")
    if verb in PARALLEL:
        default, what = PARALLEL[verb]
        add("--parallel", type=arguments.count_to_1000, default=default, metavar="N", help=f"N {what}.")


def _add_drain(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--reason", default="", help="Why, for everyone who looks at the host.")
    add("--timeout", dest="seconds", type=arguments.seconds, help="The time limit; 0 or not given: none.")
    add("--exit", dest="then_exit", action="store_true", help="End the process when it is drained.")
    servers = parser.add_mutually_exclusive_group()
    servers.add_argument("--migrate", action="store_true", help="First its servers leave: live where they run, cold "
                         "where they are stopped. The time limit is for both.")  # fmt: skip
    servers.add_argument("--no-migrate", dest="stay", action="store_true", help="Those that have not left yet stay.")
    servers.add_argument("--shutdown-guests", action="store_true", help="First its guests go off, each with its own "
                         "grace period, and all within --timeout, if that is given.")  # fmt: skip
    add("--no-wait", action="store_true", help="Write the request, and do not follow.")
    add("--dry-run", action="store_true", help="Name what would have to end; change nothing.")


def _end_with_usage(parser: argparse.ArgumentParser) -> None:
    """Have wrong usage exit with USAGE: argparse's 2 means here that a drain continues."""

    def error(called_from_command_line: bool, message: str) -> NoReturn:
        if not called_from_command_line:
            raise CommandError(message)
        parser.print_usage(sys.stderr)
        parser.exit(USAGE, f"{message}. See: {parser.prog} --help\n")

    parser.error = partial(error, getattr(parser, "called_from_command_line", True))  # type: ignore[method-assign]
