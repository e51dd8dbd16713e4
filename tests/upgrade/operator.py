"""An operator who upgrades a cloud by the commands of docs/upgrade.md, and asks before each one whether it is next."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.local import workers
from deploy.local.state import StackState
from tests.chaos.run import say
from tests.live.gunicorns import Api
from tests.upgrade import page
from tests.upgrade.page import Command
from tests.upgrade.rollout import READY_SECONDS, Rollout

COMMAND_SECONDS = 400
CHECK = ("manage.py", "upgrade_check")


def names(state: StackState, placeholder: str) -> list[str]:
    """The processes that a placeholder of the page stands for."""
    if placeholder == "OLD_PID":
        return ["api"]
    return [node.name for node in workers.nodes(state) if node.role == placeholder.lower()]


def order(state: StackState) -> list[str]:
    """Every process, in the order in which the page replaces them."""
    return [name for step in page.steps() for command in step.commands for name in names(state, command.placeholder)]


class Operator:
    """Runs the new version's commands; `supervisor` starts again what dies, but for what a command stops."""

    def __init__(self, rollout: Rollout, tree: Path) -> None:
        self._rollout, self._tree, self._place = rollout, tree, rollout.place
        self._older: Api | None = None  # from the start of the new API to the end of the old one

    def upgrade(self) -> None:
        """Run every command of the page in its order."""
        for step in page.steps():
            say(f"{step.title}: {'; '.join(map(str, step.commands))}")
            for command in step.commands:
                self._run(command)

    def _run(self, command: Command) -> None:
        match command.words:
            case ["manage.py", "host", "restart", _]:
                for name in names(self._place.cloud.state, command.placeholder):
                    self._restart(command, name)
            case ["manage.py", *words]:
                if words[0] in ("migrate", "cell_migrate"):
                    self._is_next(" ".join(command.words))
                self._done(self._manage(*command.words[1:]))
            case ["gunicorn", *words]:
                self._older = self._rollout.start_api(self._tree, words)
            case ["kill", *_]:
                self._end_older(command)
            case _:
                raise AssertionError(f"nothing here runs this command of {page.PAGE}: {command}")

    def _restart(self, command: Command, name: str) -> None:
        began = time.monotonic()
        self._is_next("manage.py host restart", name)
        with self._rollout.supervisor.left_to_operator(name):
            self._done(self._manage(*command.about(name)[1:]))
        self._rollout.is_there(name, self._tree, began)

    def _end_older(self, command: Command) -> None:
        began, older = time.monotonic(), self._older
        assert older is not None, "the page starts the new API first"
        self._done(subprocess.run(command.about(str(older.pid)), capture_output=True, text=True, timeout=30))
        assert older.wait(READY_SECONDS) == 0
        self._rollout.is_there("api", self._tree, began)

    def _is_next(self, *words: str) -> None:
        """The first thing to do, as `upgrade_check` says, has these words."""
        asked = self._manage(*CHECK[1:], "--json")
        assert asked.stdout, asked.stderr
        checks = json.loads(asked.stdout)
        first = next(check for check in checks if check["result"] != "ok")
        assert all(word in first["what to do"] for word in words), (words, checks)

    def _manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._tree / ".venv/bin/python"), "manage.py", *words], cwd=self._tree,
            env=self._place.cloud._managing(), capture_output=True, text=True, timeout=COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @staticmethod
    def _done(command: subprocess.CompletedProcess[str]) -> None:
        said: Sequence[str] = (command.stdout, command.stderr)
        assert command.returncode == 0, f"{command.args}: exit code {command.returncode}\n{''.join(said)}"
