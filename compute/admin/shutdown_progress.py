"""The grace period on the page of a server: the countdown, what happens at its end, and the buttons that end it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from cells import admin_widgets as look
from compute.actions.force_delete import ForceDelete
from compute.actions.reboot import Reboot
from compute.actions.stop import Stop
from compute.admin import allowed_actions
from compute.models import InstanceAction, Step
from compute.shutdown import status
from compute.state import TaskState
from compute.virt.shutdown_timer import ShutdownTimer

FORCED = "its power is cut"
AT_DEADLINE = {  # what happens at the deadline, by the action that waits
    "stop": FORCED, "reboot": "it is reset (hard reboot)", "delete": f"{FORCED} and it is deleted",
}  # fmt: skip
GOES_ON = f"{FORCED} and the {{}} continues"
STOP, REBOOT, DELETE = Stop.key, Reboot.key, ForceDelete.key


@dataclass(frozen=True, slots=True)
class EndWaitButton:
    """A button that ends the grace period: its verb, and one field of the action's body."""

    verb: str
    name: str
    meaning: str
    field: str = ""
    value: str = ""


END_WAIT_BUTTONS = {
    STOP: EndWaitButton(
        STOP, "Cut power now", "Ends the grace period. Data that the guest has not written to its disk is lost.",
        "shutdown_type", "HARD",
    ),
    REBOOT: EndWaitButton(REBOOT, "Reset now", "Ends the grace period. The guest reboots at once.", "type", "HARD"),
    DELETE: EndWaitButton(DELETE, "Delete now", "Ends the grace period. The server is deleted and cannot be restored."),
}  # fmt: skip
# the button that ends the wait, by task state
BUTTON_BY_TASK = {TaskState.POWERING_OFF: STOP, TaskState.REBOOTING: REBOOT}


@dataclass(frozen=True, slots=True)
class ShutdownProgress:
    """One shutdown timer, and the actions that wait for it."""

    timer: ShutdownTimer
    asked: list[str]
    then: str
    buttons: list[EndWaitButton]

    @property
    def left(self) -> float:
        """The seconds left, as of now."""
        return round(self.timer.left(time.time()), 1)

    @property
    def left_text(self) -> str:
        """The time left, as text."""
        return look.seconds(self.left)

    @property
    def overdue(self) -> str:
        """How long after the deadline the end of the guest is still not reported; "" up to 2 s after it."""
        late = time.time() - self.timer.deadline
        return look.seconds(late) if self.timer.runs and late > 2 else ""

    @property
    def percent(self) -> int:
        """The elapsed share of the grace period, in percent."""
        return status.percent(self.timer.begun, self.timer.deadline, time.time())

    @property
    def seconds(self) -> float:
        """The length of the grace period, in seconds."""
        return round(self.timer.deadline - self.timer.begun, 1)

    @property
    def length(self) -> str:
        """The length of the grace period, as text."""
        return look.seconds(self.seconds)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """(title, text) of what happens at the deadline, the signals, and the actions that wait."""
        when = f"{datetime.fromtimestamp(self.timer.deadline, UTC):%H:%M:%S} UTC"
        late, soon = "overdue since {}: as soon as its host can, {}", "at {}, unless it shuts down before: {}"
        return [
            ("At the deadline", (late if self.overdue else soon).format(when, self.then)),
            ("Signals", _signals(self.timer)),
            *(("Requested by" if number == 0 else "and", one) for number, one in enumerate(self.asked)),
        ]


def of(history: Iterable[tuple[InstanceAction, Step]], task: str | None,
       choices: list[allowed_actions.AllowedAction]) -> ShutdownProgress | None:  # fmt: skip
    """Return the progress from a history that is read already, oldest first; None when no shutdown timer runs."""
    asked: list[str] = []
    waiting: tuple[InstanceAction, ShutdownTimer] | None = None
    for action, step in history:
        timer = ShutdownTimer.load(step.timer) if step.is_open else None
        if timer is not None and timer.runs:
            asked.append(_who(action))
            waiting = action, timer
    if waiting is None:
        return None
    newest, timer = waiting  # all wait for one shutdown timer; the newest action decides what happens then
    then = AT_DEADLINE.get(newest.action, GOES_ON.format(newest.action))
    return ShutdownProgress(timer, asked, then, _buttons(task, choices))


def _signals(timer: ShutdownTimer) -> str:
    """Return how many shutdown signals the guest got, how, and when the last."""
    how = f" by {timer.by.replace('acpi', 'ACPI').replace('agent', 'guest agent')}" if timer.by else ""
    last = f", last {look.seconds(time.time() - timer.signalled)} ago" if timer.signalled else ""
    return f"{timer.signals}{how}{last}" if timer.signals else "none yet"


def _who(action: InstanceAction) -> str:
    who = f"user {action.user_id}" if action.user_id else "no user"
    return f"{action.action}, {look.age(action.started_at)} ago, by {who} ({action.request_id})"


def _buttons(task: str | None, choices: list[allowed_actions.AllowedAction]) -> list[EndWaitButton]:
    """Return the buttons that end this wait and that the caller may press."""
    may = {choice.key for choice in choices if not choice.why_not}
    wanted = (BUTTON_BY_TASK.get(TaskState(task)) if task else None, DELETE)
    return [END_WAIT_BUTTONS[key] for key in wanted if key and key in may]
