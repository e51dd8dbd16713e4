"""Sends every model to its home, and refuses to guess."""

from __future__ import annotations

from typing import Any

from django.db import models

from cells import context


def home(model: type[models.Model]) -> str:
    """"global" or "cell". Django's own and third-party models are global."""
    found = getattr(model, "home", None)
    if found is None and model._meta.auto_created:
        found = getattr(model._meta.auto_created, "home", None)
    return found or "global"


class CellRouter:
    """GlobalModel -> "default"; CellModel -> the cell targeted by `target_cell()`."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        """The alias to read from. Raises NoCellTargeted."""
        if home(model) == "global":
            return "default"
        instance = hints.get("instance")
        if instance is not None and instance._state.db:
            return instance._state.db
        return context.current_alias()

    db_for_write = db_for_read

    def allow_relation(self, one: models.Model, other: models.Model, **hints: Any) -> bool:
        """Only inside one database; of one that is in none yet, its home counts."""
        if one._state.db and other._state.db:
            return one._state.db == other._state.db
        return home(type(one)) == home(type(other))

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        """A table is made only in its home; data migrations name theirs with hints={"home": …}."""
        here = "cell" if db.startswith("cell:") else "global"
        model = hints.get("model")
        if model is None and model_name is not None:
            from django.apps import apps  # noqa: PLC0415  the registry is loaded after the router

            try:
                model = apps.get_model(app_label, model_name)
            except LookupError:  # a model that later migrations removed
                return None
        if model is not None:
            return _home_in_state(app_label, model) == here
        wanted = hints.get("home")
        return wanted is None or wanted == here


def _home_in_state(app_label: str, model: type[models.Model]) -> str:
    """Migrations pass historical models, which have lost their base class: ask the real one."""
    from django.apps import apps  # noqa: PLC0415  the registry is loaded after the router

    try:
        return home(apps.get_model(app_label, model._meta.model_name))
    except LookupError:
        return home(model)
