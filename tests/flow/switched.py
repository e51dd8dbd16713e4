"""One server, its power button, and everybody who wants something of it: in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from cells.context import target_cell
from cloud import failpoints
from compute.actions.power_update import OFF, ON
from compute.models import Instance, InstanceAction, Service, Step
from compute.operations import recovery
from compute.power import sync as power_sync
from compute.virt.base import PowerState
from tests.byhand import Cloud
from tests.flow import stories
from tests.flow.stories import Killed
from tests.flow.test_power_update import say

REQUESTS: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None}, "hard stop": {"os-stop": {"shutdown_type": "HARD"}}, "start": {"os-start": None},
    "soft reboot": {"reboot": {"type": "SOFT"}}, "hard reboot": {"reboot": {"type": "HARD"}},
    "pause": {"pause": None}, "unpause": {"unpause": None}, "suspend": {"suspend": None}, "resume": {"resume": None},
    "copy": {"createImage": {"name": "i"}}, "reset": {"os-resetState": {"state": "active"}},
}  # fmt: skip
OFTEN = ["stop", "start", "hard reboot", "soft reboot", "hard stop"]
POINTS = ("step.claimed", "step.worked", "step.committed", "driver")
ON_RECORD = {"active": {PowerState.RUNNING}, "paused": {PowerState.PAUSED},
             "stopped": {PowerState.SHUTDOWN, PowerState.CRASHED}}  # fmt: skip


class Switched:
    """A story of one server. Everything below its API is in the hand of the dice."""

    def __init__(self, api: Any, cloud: Cloud, server_id: str, seed: int) -> None:
        self.api, self.cloud, self.server_id, self.dice = api, cloud, server_id, random.Random(seed)
        self.host = cloud.host_of(server_id)
        self.log: list[str] = []
        self.told = True  # who pressed the button last has said so
        self.said: list[InstanceAction] = []
        self.meanwhile: dict[str, Callable[[], object]] = {}

    def tell(self, moves: int) -> None:
        """So many things happen."""
        for _ in range(moves):
            self.dice.choices([*OFTEN_BY_WHOM], [*OFTEN_BY_WHOM.values()])[0](self)

    # -- what may happen

    def press(self) -> None:
        """The button, and mostly somebody says so."""
        said = self.dice.choice((ON, OFF))
        with suppress(Exception):  # no such guest any more
            pressed = self.host.driver.switch(self.server_id, on=said == ON)
            self.told &= not pressed
        if self.dice.random() < 0.8:
            self.say(said)
            self.told = True
        self.log.append(f"pressed: {said}, told: {self.told}")

    def lie(self) -> None:
        """A word that is late, or comes twice."""
        self.say(self.dice.choice((ON, OFF)))
        self.told = True  # whatever it says, the machine is looked at
        self.log.append("said late")

    def say(self, said: str) -> None:
        """To the API, which knows no deleted servers."""
        if not self._row().deleted:
            self.said.append(say(self.cloud, self.server_id, said))

    def ask(self) -> None:
        """A user, or an operator."""
        kind = self.dice.choice(OFTEN if self.dice.random() < 0.7 else list(REQUESTS))
        answer = stories.act(self.api, self.server_id, REQUESTS[kind])
        self.log.append(f"asked: {kind}: {answer.status_code}")

    def delete(self) -> None:
        """A user."""
        self.api.delete(f"/servers/{self.server_id}")
        self.log.append("deleted")

    def deliver(self) -> None:
        """One message; while its step runs, something else may happen."""
        steps = self._queued()
        if not steps:
            return
        step = self.dice.choice(steps)
        if self.dice.random() < 0.5:
            inside = self.dice.choice([self.press, self.ask, self.lie, self.sync])
            self.meanwhile[self.dice.choice(POINTS)] = inside
        self.log.append(f"runs: {step.name}, meanwhile {[*self.meanwhile]}")
        try:
            self.host.run(step.pk)
        finally:
            self.meanwhile.clear()

    def kill(self) -> None:
        """The host, at a moment of a step; it comes back."""

        def die() -> None:
            raise Killed

        steps = self._queued()
        if not steps:
            return
        step, point = self.dice.choice(steps), self.dice.choice(POINTS)
        self.log.append(f"killed: {step.name} at {point}")
        self.meanwhile[point] = die
        with suppress(Killed):
            self.host.run(step.pk)
        self.meanwhile.clear()
        self.host.restart()

    def sync(self) -> None:
        """The host's periodic look."""
        with target_cell(self.host.cell):
            power_sync.sync(self.host.name, self.host.driver)

    def drain(self) -> None:
        """The host begins nothing more, or again."""
        with target_cell(self.host.cell):
            wanted = not Service.objects.get(host=self.host.name).drain_wanted
            Service.objects.filter(host=self.host.name).update(drain_wanted=wanted)
        self.log.append(f"drains: {wanted}")

    def relay(self) -> None:
        """The net: what waits looks again."""
        with target_cell(self.host.cell):
            Step.objects.filter(state="waiting").update(not_before=stories.just_over())
            recovery.relay()

    def _queued(self) -> list[Step]:
        """What the host hears of."""
        with target_cell(self.host.cell):
            drains = Service.objects.get(host=self.host.name).drain_wanted
            queued = Step.objects.filter(state="queued", server_id=self.server_id).exclude(host="")
            return list(queued.filter(queue="ops") if drains else queued)

    # -- and in the end

    def rest(self) -> None:
        """Everything that was asked for is done."""
        with target_cell(self.host.cell):
            Service.objects.filter(host=self.host.name).update(drain_wanted=False)
        for _ in range(4):
            while steps := self._queued():
                for step in steps:
                    self.host.run(step.pk)
            with target_cell(self.host.cell):
                if not Step.objects.open(server_id=self.server_id).exists():
                    return
            self.relay()
            stories.later(self.cloud)
            self.cloud.work()

    def check(self) -> None:
        """Nothing is lost, nothing stuck, and the record is true."""
        try:
            self._check()
        except AssertionError as wrong:
            story = "\n".join([*self.log, *(f"{a.action} {a.params} {a.message} {a.outcome}" for a in self._actions())])
            raise AssertionError(f"{wrong}\n{story}") from wrong

    def _check(self) -> None:
        row = self._row()
        assert row.task_state is None
        for action in self._actions():
            assert action.finished_at is not None, f"{action.action} has not ended"
            assert action.outcome, f"{action.action} ended without a word"
        with target_cell(self.host.cell):
            assert not Step.objects.open(server_id=self.server_id).exists()
        self._heard_in_order()
        if row.deleted:
            assert self.server_id not in self.host.driver.guests()
            return
        if self.told:
            self._true()
        self.sync()
        self._true()

    def _heard_in_order(self) -> None:
        """Each has ended well; whoever came before the newest that was carried out has not undone it."""
        for action in self.said:
            with target_cell(action._state.db):
                action.refresh_from_db()
            assert action.message is None, f"{action.params} failed: {action.outcome}"
        assert not self.said or not self.said[-1].outcome.startswith("superseded"), "the newest was superseded"

    def _true(self) -> None:
        row, does = self._row(), self.host.driver.power_state(self.server_id)
        assert row.power_state == does, f"{PowerState(row.power_state).name} on record, and it is {does.name}"
        assert does in ON_RECORD.get(row.vm_state, {does}), f"{row.vm_state} on record, and it is {does.name}"

    def _actions(self) -> list[InstanceAction]:
        with target_cell(self.host.cell):
            return list(InstanceAction.objects.filter(server_id=self.server_id).order_by("pk"))

    def _row(self) -> Instance:
        with target_cell(self.host.cell):
            return Instance.objects.get(uuid=self.server_id)


OFTEN_BY_WHOM: dict[Callable[[Switched], None], float] = {
    Switched.press: 5, Switched.lie: 1, Switched.ask: 5, Switched.deliver: 8, Switched.kill: 2, Switched.sync: 1,
    Switched.drain: 1, Switched.relay: 1, Switched.delete: 0.1,
}  # fmt: skip


def in_the_hand_of(story: Switched, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to happen at a moment of a step happens there, once."""

    def reached(point: str, step: str = "", server: str = "") -> None:
        story.meanwhile.pop(point, lambda: None)()

    monkeypatch.setattr(failpoints, "reached", reached)
    driver = story.host.driver
    for verb in ("power_update_event", "power_on", "reboot_hard", "begin_shutdown"):
        monkeypatch.setattr(driver, verb, _with_a_middle(story, getattr(type(driver), verb).__get__(driver)))


def _with_a_middle(story: Switched, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*words: Any, **more: Any) -> Any:
        answer = call(*words, **more)
        story.meanwhile.pop("driver", lambda: None)()
        return answer

    return called
