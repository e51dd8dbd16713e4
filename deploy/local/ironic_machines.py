"""A hardware type for the tests' Ironic: machines that change independently of it. Ironic's Python alone loads it.

Each machine is a JSON file, which a test may change at any time: `power`; `obeys`, the seconds after which the guest is
off when asked to shut down (null: it ignores the request); `reachable`; `deploys`, the seconds a deployment takes
(null: it fails). It counts the shutdown requests in `asked` and the deployments in `deployed`. The power driver "fake"
only repeats the last state that Ironic set; these machines can be switched without Ironic.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ironic.common import exception, states
from ironic.conductor import utils
from ironic.drivers import base, fake_hardware
from ironic.drivers.modules import fake

FRESH = {
    "power": states.POWER_OFF, "obeys": 0, "off_at": None, "asked": 0, "reachable": True, "deploys": 0, "deployed": 0,
}  # fmt: skip


class MachinePower(base.PowerInterface):
    """The power interface of a machine in a file."""

    def get_properties(self) -> dict[str, str]:
        return {}

    def validate(self, task: Any) -> None:
        pass

    def get_power_state(self, task: Any) -> str:
        return str(_read(task)["power"])

    def set_power_state(self, task: Any, power_state: str, timeout: int | None = None) -> None:
        if power_state in (states.SOFT_POWER_OFF, states.SOFT_REBOOT):
            _press_button(task)
            utils.node_wait_for_power_state(task, states.POWER_OFF, timeout=timeout)
        if power_state != states.SOFT_POWER_OFF:
            on = power_state in (states.POWER_ON, states.SOFT_REBOOT)
            _change(task, power=states.POWER_ON if on else states.POWER_OFF, off_at=None)

    def reboot(self, task: Any, timeout: int | None = None) -> None:
        _change(task, power=states.POWER_ON, off_at=None)

    def get_supported_power_states(self, task: Any) -> list[str]:
        return [states.POWER_ON, states.POWER_OFF, states.REBOOT, states.SOFT_REBOOT, states.SOFT_POWER_OFF]


class MachineDeploy(fake.FakeDeploy):
    """The deploy interface, which writes no image."""

    @base.deploy_step(priority=100)
    def deploy(self, task: Any) -> None:
        machine = _read(task)
        if machine["deploys"] is None:
            raise exception.InstanceDeployFailure(reason="the disk is broken")
        time.sleep(machine["deploys"])
        _change(task, deployed=_read(task)["deployed"] + 1)
        utils.node_power_action(task, states.POWER_ON)


class Machines(fake_hardware.FakeHardware):
    """A hardware type that is fake except for power and deployment."""

    @property
    def supported_power_interfaces(self) -> list[type]:
        return [MachinePower]

    @property
    def supported_deploy_interfaces(self) -> list[type]:
        return [MachineDeploy]


def _press_button(task: Any) -> None:
    machine = _read(task)
    hears = machine["obeys"] is not None
    off_at = machine["off_at"] or (time.time() + machine["obeys"] if hears else None)
    _change(task, asked=machine["asked"] + 1, off_at=off_at)


def _read(task: Any) -> dict[str, Any]:
    """Return the present state of a machine: off when its `off_at` has passed. Raises PowerStateFailure."""
    try:
        machine = FRESH | json.loads(_file(task).read_text())
    except FileNotFoundError:
        machine = dict(FRESH)
    if not machine["reachable"]:
        raise exception.PowerStateFailure(pstate="unknown: the machine does not answer")
    if machine["off_at"] is not None and time.time() >= machine["off_at"]:
        machine |= {"power": states.POWER_OFF, "off_at": None}
    return machine


def _change(task: Any, **facts: object) -> None:
    file = _file(task)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(_read(task) | facts))
    new.replace(file)


def _file(task: Any) -> Path:
    return Path(os.environ["STILLWATER_MACHINES"]) / str(task.node.uuid)
