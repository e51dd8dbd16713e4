"""System checks: every model has a home, no foreign key leaves its home, and TLS works."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core import checks
from django.db import models

from cells import tls_warnings
from cells.router import home

OURS = ("cells", "compute", "identity", "images", "tasks")


@checks.register(checks.Tags.models)
def check_homes(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report models of ours without a home, and foreign keys that leave their home."""
    found: list[checks.CheckMessage] = []
    for model in apps.get_models(include_auto_created=True):
        label = model._meta.app_label
        if label in OURS and not hasattr(model, "home") and not model._meta.auto_created:
            found.append(checks.Error(
                f"{model._meta.label} has no home.", obj=model, id="cells.E001",
                hint="Derive it from cells.models.GlobalModel or CellModel."))  # fmt: skip
        for field in model._meta.get_fields():
            target = getattr(field, "related_model", None)
            if isinstance(field, models.ForeignKey) and target and home(target) != home(model):
                found.append(checks.Error(
                    f"{model._meta.label}.{field.name} points from a {home(model)} record to a {home(target)} one.",
                    obj=model, id="cells.E002", hint="Keep the id in a plain column."))  # fmt: skip
    return found


@checks.register(checks.Tags.security)
def check_tls(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Report TLS files with which connections fail now or soon, and URLs that send passwords in plain text."""
    return [
        (checks.Error if fault.is_fatal else checks.Warning)(
            f"{fault.text}.", id="cells.E003" if fault.is_fatal else "cells.W001", hint="docs/tls.md"
        )
        for fault in tls_warnings.found()
    ]
