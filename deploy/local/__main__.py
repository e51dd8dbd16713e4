"""python -m deploy.local up|down|status|clean: a whole cloud on this machine, in one folder."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.down import clean, down
from deploy.local.output import Failed
from deploy.local.state import StackState
from deploy.local.status import status
from deploy.local.up import UpOptions, up

MOST_HOSTS = 10  # per cell
STOP_SECONDS = 75  # a guest's grace period is 60 s, and a draining host waits for it


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    starts = verbs.add_parser("up", help="start what does not run")
    starts.add_argument("--driver", choices=("libvirt", "fake"), help="default: libvirt")
    starts.add_argument("--bind", help="address of the API, default 127.0.0.1")
    starts.add_argument("--port", type=int, help="port of the API, default 8774")
    starts.add_argument("--redis-port", type=int, help="first of three ports for Redis, default 6390")
    starts.add_argument("--hosts-per-cell", type=_number, help="of a new cloud, default 1")
    starts.add_argument("--guests", type=Path, help="folder guest images are built in")
    starts.add_argument("--no-first-guest", dest="first_guest", action="store_false", help="boot no guest")
    stops = verbs.add_parser("down", help="stop everything gracefully")
    stops.add_argument("--timeout", type=float, default=STOP_SECONDS, help="seconds each service may take")
    verbs.add_parser("clean", help="delete the state folder, unless something runs")
    verbs.add_parser("status", help="show every process, queue, host and guest")
    return parser.parse_args()


def _number(text: str) -> int:
    if not 1 <= int(text) <= MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"between 1 and {MOST_HOSTS}")
    return int(text)


@contextmanager
def alone(state: StackState) -> Iterator[None]:
    """Hold the lock of the state folder: one command changes a cloud at a time. Raises Failed when it is taken."""
    state.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(state.path("lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as exc:
        raise Failed(f"another `up` or `down` works in {state.directory}", advice="Wait until it is done.") from exc
    finally:
        os.close(descriptor)


def main() -> int:
    """Run one command and return its exit code. A failure prints a sentence and returns 1."""
    options = vars(arguments())
    verb = options.pop("verb")
    os.umask(0o077)  # logs and databases too are readable by their owner only
    try:
        state = StackState.from_environment()
        if verb == "status":
            code = status(state)
            sys.stdout.flush()
            return code
        with alone(state):
            state = StackState(state.directory)
            if verb == "up":
                up(state, UpOptions(**options))
            elif verb == "down":
                down(state, options["timeout"])
            else:
                clean(state)
    except Failed as failed:
        failed.show()
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; what runs goes on: `make up` continues, `make down` stops it", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout has ended, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
