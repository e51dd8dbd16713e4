"""The parameters of an action, between its row and the dataclass its class declares."""

from __future__ import annotations

from dataclasses import is_dataclass, replace

import msgspec
import pytest

from compute.actions.migrate_live import MigrateLiveParams
from compute.actions.power_update import PowerUpdateParams
from compute.migration.cold import ColdMoveParams
from compute.operations import registry
from compute.operations.action import ActionParams, ServerAction
from compute.state import VmState
from compute.virt.base import Progress

ROW = {"source": "h1", "was": "active", "said_by_a_newer_version": [1], "progress": {"memory_total": 5, "pages": 3}}


@pytest.mark.parametrize("action", registry.every().values(), ids=list(registry.every()))
def test_each_action_has_a_frozen_dataclass(action):
    kind = action.params_type
    assert issubclass(kind, ActionParams)
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen


def test_a_base_class_names_them_for_its_subclasses():
    assert {registry.named(key).params_type for key in ("Resize", "Migrate")} == {ColdMoveParams}
    assert ServerAction().params_type is ActionParams


def test_a_row_of_another_version_is_read():
    params = ColdMoveParams.load(ROW)
    assert (params.source, params.was, params.destination) == ("h1", VmState.ACTIVE, "")
    assert params.progress == Progress(memory_total=5)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"source": 3}, r"Expected `str`, got `int` - at `\$.source`"),
        ({"was": "melted"}, r"Invalid enum value 'melted' - at `\$.was`"),
        ({"new": []}, r"Expected `object`, got `array` - at `\$.new`"),
        ({"was": None}, r"`\$.was`"),
    ],
)
def test_a_wrong_type_is_named(wrong, text):
    with pytest.raises(msgspec.ValidationError, match=text):
        ColdMoveParams.load(ROW | wrong)


def test_what_an_action_cannot_do_without_is_named():
    with pytest.raises(msgspec.ValidationError, match="missing required field `event`"):
        PowerUpdateParams.load({})


def test_only_what_differs_is_written():
    assert MigrateLiveParams().as_json() == {}
    params = ColdMoveParams(was=VmState.STOPPED, new={"vcpus": 2}, shutdown_timeout=0)
    assert params.as_json() == {"was": "stopped", "new": {"vcpus": 2}, "shutdown_timeout": 0}
    assert ColdMoveParams.load(params.as_json()) == params
    assert replace(params, was=VmState.ACTIVE, new={}).changes_since(params) == {"was": "active", "new": {}}
