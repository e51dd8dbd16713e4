"""manage.py commands of the global side, all in one process: Django takes a second to start, and `up` runs a dozen."""

from __future__ import annotations

import atexit
import json
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from deploy.local import envfiles
from deploy.local.output import Failed
from deploy.local.processes import python
from deploy.local.state import ROOT, StackState

COMMAND_SECONDS = 180
END_SECONDS = 10
_clients: dict[Path, ManageClient] = {}


def manage(state: StackState, *words: str, what: str = "", extra: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed, which goes to log/commands.log, too. Raises Failed.

    `what` names the command in the error text; `extra` are additional environment variables.
    """
    client = _clients.get(state.directory)
    if client is None or client.ended:
        client = _clients[state.directory] = ManageClient(state)
    return client.run(words, extra or {}, what or f"manage.py {words[0]}")


class ManageClient:
    """The process that runs the commands. It ends with this process, or when a command takes too long."""

    def __init__(self, state: StackState) -> None:
        self.log = state.log("commands")
        environment = envfiles.process_environment(state, envfiles.global_file(state))
        command = [python(), "-m", "deploy.local.command_server"]
        with self.log.open("a") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
            )  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        atexit.register(self.end)

    @property
    def ended(self) -> bool:
        """Whether the process has ended and takes no more commands."""
        return self._process.poll() is not None

    def run(self, words: tuple[str, ...], extra: dict[str, str], what: str) -> str:
        """Run one command to its end and return what it printed. Raises Failed."""
        began = time.monotonic()
        self._note(f"--- {time.strftime('%F %T')} manage.py {' '.join(words)}\n")
        answer = self._ask(json.dumps([words, extra]))
        if not answer:
            late = time.monotonic() - began >= COMMAND_SECONDS
            how = f"took longer than {COMMAND_SECONDS} s" if late else "was ended by somebody"
            raise Failed(f"{what} {how}", log=self.log)
        code, said = json.loads(answer)
        self._note(said)
        if code:
            advice = "Mend it and run `make up` again."
            raise Failed(f"{what} failed (exit code {code})", log=self.log, advice=advice)
        return str(said)

    def end(self) -> None:
        """Close the stdin of the process and wait for its end."""
        with suppress(OSError):  # the process may have ended
            self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def _ask(self, line: str) -> str:
        """Send one line and return the answer; empty when the process has ended. After COMMAND_SECONDS it is killed."""
        patience = threading.Timer(COMMAND_SECONDS, self._process.kill)
        patience.start()
        try:
            self._stdin.write(f"{line}\n")
            self._stdin.flush()
            return self._stdout.readline()
        except BrokenPipeError:
            return ""
        finally:
            patience.cancel()

    def _note(self, text: str) -> None:
        with self.log.open("a") as out:
            out.write(text)
