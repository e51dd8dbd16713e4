"""Every record has a home, and nobody guesses which."""

from __future__ import annotations

from unittest import mock

import pytest
from django.apps import apps
from django.db import models
from django.test.utils import isolate_apps

from cells import checks
from cells.context import NoCellTargeted, target_cell
from cells.models import CellModel, GlobalModel
from compute.models import Flavor, InstanceAction, Service, Step


def found(*made):
    with mock.patch.object(apps, "get_models", return_value=list(made)):
        return [(error.id, error.obj._meta.object_name) for error in checks.homes(None)]


def test_our_own_models_are_all_at_home():
    assert checks.homes(None) == []


@isolate_apps("cells")
def test_a_homeless_model_is_an_error():
    class Stray(models.Model):
        class Meta:
            app_label = "cells"

    assert found(Stray) == [("cells.E001", "Stray")]


@isolate_apps("cells")
def test_a_foreign_key_that_leaves_its_home_is_an_error():
    class Here(GlobalModel):
        class Meta:
            app_label = "cells"

    class There(CellModel):
        here = models.ForeignKey(Here, on_delete=models.CASCADE)

        class Meta:
            app_label = "cells"

    assert found(Here, There) == [("cells.E002", "There")]


def test_the_router_refuses_to_guess():
    with pytest.raises(NoCellTargeted):
        Service.objects.first()


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_records_go_home(cells):
    with target_cell(cells["cell1"]) as alias:
        assert Service.objects.all().db == alias
        assert Flavor.objects.all().db == "default"
        with target_cell(cells["cell2"]) as inner:
            assert Service.objects.all().db == inner
        assert Service.objects.all().db == alias


def test_a_row_of_one_cell_cannot_refer_to_a_row_of_another():
    action, step = InstanceAction(pk=1), Step(pk=1)
    action._state.db, step._state.db = "cell:one", "cell:other"
    with pytest.raises(ValueError, match="the current database router prevents this relation"):
        step.action = action
    step._state.db = None  # not saved yet
    step.action = action
