"""manage.py host: start, stop, restart, drain, undrain, shutdown-guests, status, list.

Exit codes: 0 done; 1 wrong words, or a host nobody knows; 2 it still drains, and goes on; 3 a host or its
cell does not answer (status: is not up); 4 it ended with operations unfinished, which the journal keeps, or with
guests on; 5 a process did not start; 6 the drain was taken back (or the undrain, the shutdown) by somebody else
meanwhile; 130 interrupted: what was asked for goes on. Of several hosts the highest code counts.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from cloud import env
from tasks.management import drain, output, processes, shutdown_guests, status
from tasks.management.options import CommandRefused, HostCommand
from tasks.management.wait import CANCELLED, INTERRUPTED, SILENT, USAGE
from tasks.worker_process import BadEnvFile

CODES = " ".join(line.strip() for line in (__doc__ or "").split("\n\n", 1)[1].splitlines())
DOES: dict[str, tuple[str, Callable[[HostCommand], int] | None]] = {
    "start": ("start the process on this machine, and wait until it is up", processes.start),
    "stop": ("SIGTERM to the process on this machine, and follow its drain to the end", processes.stop),
    "restart": ("stop, start, wait until it is up; one host after the other", processes.restart),
    "drain": ("take no new work and end what is begun, with --migrate when its servers have left; stay so until "
              "undrain", drain.drain),
    "undrain": ("take the drain back, and wait until it takes work, with --return has its servers back",
                drain.undrain),
    "shutdown-guests": ("shut all guests of a host down, the lowest priority first, each with its own grace; who was "
                        "running runs again when the host is back", shutdown_guests.shutdown_guests),
    "status": ("one page: wanted and seen, lanes, operations", None),
    "list": ("all hosts of all cells, a page at a time", None),
}
FOLLOWS = ("start", "stop", "restart", "drain", "undrain", "shutdown-guests")
SAID = (
    "interval", "patience", "seconds", "reason", "then_exit", "no_wait", "dry_run", "force", "parallel", "migrate",
    "stay", "bring_back", "shutdown_guests",
)  # fmt: skip
GOES_ON = {
    "drain": "Interrupted. The drain goes on. Follow it: the same command; take it back: host undrain {names}",
    "undrain": "Interrupted. It was asked to take work again. Follow it: the same command.",
    "shutdown-guests": "Interrupted. The host goes on with it. Follow it: the same command; whose turn has not come "
    "stays on with: host undrain {names}",
    "stop": "Interrupted. They drain and end all the same. Follow it: the same command.",
    "restart": "Interrupted. Whatever was told to end ends, and is not started. Go on: the same command.",
    "start": "Interrupted. What was started goes on starting. Follow it: the same command.",
}


class Command(BaseCommand):
    """Words and exit codes; what each verb does is in tasks/management."""

    help = (
        "Start, stop, restart, drain, undrain and show hosts (also conductors and schedulers); shut down their guests. "
        f"{CODES}"
    )
    requires_system_checks: list[str] = []  # a host's own machine has no global database

    def add_arguments(self, parser: CommandParser) -> None:
        """Add a subparser for each verb, with its options."""
        _ends_with_usage(parser)
        parser.epilog = CODES
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
        for name, (meaning, _) in DOES.items():
            words = verbs.add_parser(name, help=meaning, description=meaning.capitalize() + ".", epilog=CODES)
            _ends_with_usage(words)
            _add_words(name, words)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the verb; every failure ends in a sentence and an exit code."""
        # a down cell is in the table; a log line in between would break the table
        logging.getLogger("cells").setLevel(logging.ERROR)
        try:
            code = self._run(options)
        except CommandRefused as exc:
            self._end(exc.code, str(exc))
        except BadEnvFile as exc:
            self._end(USAGE, f"{exc}. Mend the file, and run this again.")
        except PermissionError as exc:
            self._end(USAGE, f"{exc}. Run this as the user the workers run as.")
        except DatabaseError as exc:
            self._end(SILENT, f"The global database does not answer ({type(exc).__name__}). Is it up, and is "
                      "STILLWATER_ENV_FILE the right one? On the machine of a host: its own env file.")  # fmt: skip
        except BrokenPipeError:  # `| head` has closed the pipe; what was requested goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(INTERRUPTED)
        except KeyboardInterrupt:
            names = " ".join(options.get("hosts") or ())
            if options.get("migrate") and self._is_taken_back():
                self._run(options | {"verb": "undrain"})
                sys.exit(CANCELLED)
            self._end(INTERRUPTED, GOES_ON.get(options["verb"], "Interrupted.").format(names=names))
        if code:
            sys.exit(code)

    def _run(self, options: dict[str, Any]) -> int:
        verb, form = options["verb"], options["form"]
        if verb == "list":
            if settings.ROLE == "host":
                raise CommandRefused("This is a host, which knows no other. Ask where the global database is known.")
            page = status.StatusPage(limit=options["limit"], marker=options["marker"], everything=options["everything"])
            return status.listing(self.stdout, self.stderr, form, page)
        asked = HostCommand(
            screen=output.of(form, self.stdout), names=tuple(options["hosts"]), state=env.state_dir(),
            env_dir=Path(options["env_dir"] or env.get("STILLWATER_NODE_DIR") or env.state_dir() / "env").resolve(),
            **{key: options[key] for key in SAID if key in options},
        )  # fmt: skip
        does = DOES[verb][1]
        return does(asked) if does else status.status(asked, form, settings.BROKER_URL)

    def _is_taken_back(self) -> bool:
        """Ask whether to take the drain back, on a terminal only."""
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        question = "Interrupted. Take the drain back? Servers on their way arrive, others stay. [y/N] "
        self.stdout.write(question, ending="")
        self.stdout.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _end(self, code: int, sentence: str) -> NoReturn:
        self.stderr.write(sentence)
        sys.exit(code)


def _add_words(verb: str, words: argparse.ArgumentParser) -> None:
    words.add_argument(
        "-f", "--format", dest="form", choices=output.FORMATS, default="table",
        help="table (live on a terminal, else a line a change); json: one document at the end; "
        "jsonl: one a line for every change.",
    )  # fmt: skip
    if verb == "list":
        words.add_argument("--limit", type=_count, default=100, help="Hosts on a page, at most 1000; default: 100.")
        words.add_argument("--marker", default="", help="Begin after this host.")
        words.add_argument("--all", dest="everything", action="store_true", help="Conductors and schedulers too.")
        return
    words.add_argument("hosts", nargs="+", metavar="HOST", help="Also conductor-cell1, scheduler …")
    words.add_argument(
        "--env-dir", type=Path, help="Folder of the env files <HOST>.env of this machine's workers; "
        "default: STILLWATER_NODE_DIR, else env in the state folder.",
    )  # fmt: skip
    if verb in FOLLOWS:
        words.add_argument("--interval", type=_positive, default=1.0, help="Seconds between looks; default: 1.")
    if verb in ("drain", "undrain", "shutdown-guests"):
        words.add_argument(
            "--wait-for-answer", dest="patience", type=_positive, default=30.0, metavar="SECONDS",
            help="Give up when nothing has been heard of the host for so long; more than its heartbeat takes. "
            "Default: 30.",
        )  # fmt: skip
    if verb == "drain":
        _add_drain(words)
    if verb == "shutdown-guests":
        _add_shutdown(words)
    if verb == "undrain":
        words.add_argument(
            "--return", dest="bring_back", action="store_true",
            help="Bring the servers back that a drain moved away, and that are still where it sent them.",
        )  # fmt: skip
        words.add_argument("--parallel", type=_count, default=0, help="So many of them at a time; default: 4.")
    if verb in ("stop", "restart"):
        words.add_argument(
            "--timeout", dest="seconds", type=_seconds,
            help="Follow for so long; 0: to the end. Default: the graceful timeout of the host, and a little more.",
        )  # fmt: skip
        words.add_argument("--force", action="store_true", help="End it by SIGQUIT, then SIGKILL, when that is over.")
    if verb == "stop":
        words.add_argument(
            "--shutdown-guests", action="store_true", help="First its guests go off, each with its own grace.",
        )  # fmt: skip
        words.add_argument("--parallel", type=_count, default=0, help="So many guests go off at a time; default: 16.")
    if verb == "restart":
        words.add_argument("--parallel", type=_count, default=1, help="So many hosts at the same time; default: 1.")


def _add_drain(words: argparse.ArgumentParser) -> None:
    words.add_argument("--reason", default="", help="Why, for everybody who looks.")
    words.add_argument(
        "--timeout", dest="seconds", type=_seconds, help="The time it has; 0 or not said: as long as it takes.",
    )  # fmt: skip
    words.add_argument("--exit", dest="then_exit", action="store_true", help="End the process when it is drained.")
    moves = words.add_mutually_exclusive_group()
    moves.add_argument(
        "--migrate", action="store_true",
        help="Its servers leave first: live where they run, cold where they are stopped. The time counts for both.",
    )  # fmt: skip
    moves.add_argument("--no-migrate", dest="stay", action="store_true", help="Those that have not left yet stay.")
    moves.add_argument(
        "--shutdown-guests", action="store_true",
        help="First its guests go off, each with its own grace, and all in the time of --timeout, if that is said.",
    )  # fmt: skip
    words.add_argument(
        "--parallel", type=_count, default=0,
        help="So many servers leave (default: 4), or guests go off (16), at a time.",
    )  # fmt: skip
    words.add_argument("--no-wait", action="store_true", help="Ask, and do not follow.")
    words.add_argument("--dry-run", action="store_true", help="Name what would have to end; change nothing.")


def _add_shutdown(words: argparse.ArgumentParser) -> None:
    words.add_argument("--parallel", type=_count, default=0, help="So many guests go off at a time; default: 16.")
    words.add_argument(
        "--timeout", dest="seconds", type=_seconds,
        help="The time they have together: whoever is on then is forced off. Not said: each has its own grace.",
    )  # fmt: skip
    words.add_argument("--force", action="store_true", help="Also of a host that takes work: servers may come.")
    words.add_argument("--no-wait", action="store_true", help="Ask, and do not follow.")


def _ends_with_usage(parser: argparse.ArgumentParser) -> None:
    """Have wrong usage exit with USAGE: argparse's 2 means here that a drain goes on."""

    def error(called_from_command_line: bool, message: str) -> NoReturn:
        if not called_from_command_line:
            raise CommandError(message)
        parser.print_usage(sys.stderr)
        parser.exit(USAGE, f"{message}. See: {parser.prog} --help\n")

    parser.error = partial(error, getattr(parser, "called_from_command_line", True))  # type: ignore[method-assign]


def _seconds(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isdigit() else math.nan
    if not 0 <= value <= 31_536_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to a year")
    return value


def _positive(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("more than 0 seconds")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1000")
    return int(text)
