"""The points of `make chaos` name every step of a server that goes to another host and back."""

from __future__ import annotations

import pytest

from compute.operations import registry
from compute.operations.step import On
from tests.chaos.points import STEPS, UNDOS, names
from tests.chaos.story import BODIES

KEYS = {"resize": "resize", **{name: next(iter(BODIES[name])) for name in ("confirm", "revert")}}
OFF_ROAD = {"cleanup_source"}  # of a resize: only if somebody took the server


@pytest.mark.parametrize("operation", STEPS)
def test_no_step_and_no_undo_is_spared(operation):
    specs = next(action for action in registry.every().values() if action.key == KEYS[operation]).steps
    off_road = OFF_ROAD if operation == "resize" else set()
    assert STEPS[operation] == {spec.name: _role(spec) for spec in specs if spec.name not in off_road}
    undos = [spec.undone_by for spec in specs if spec.undone_by is not None]
    assert UNDOS.get(operation, {}) == {spec.name: _role(spec) for spec in undos}


def test_every_point_has_one_name():
    assert len(names()) == len(set(names()))


def _role(spec):
    return "conductor" if spec.on is On.CONDUCTOR else "host"
