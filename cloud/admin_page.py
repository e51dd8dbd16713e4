"""What every admin page has in common: its URL asks for what its own filters ask for, and for nothing else."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from unfold.admin import ModelAdmin

_FURTHER = frozenset({"id", "pk", "exact", "in", "isnull"})  # what the filters of a list put behind a field's name


class ModelPage(ModelAdmin):
    """A model's pages."""

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only lookups of `list_filter`. Django would run any, and `?name__regex=((` is an error of the database."""
        declared = {_parameter(one) for one in self.list_filter}
        field, *further = lookup.split("__")
        return field in declared and _FURTHER.issuperset(further)


def _parameter(declared: Any) -> str:
    """What an entry of `list_filter` is called in a URL."""
    name = declared[0] if isinstance(declared, list | tuple) else declared
    return str(getattr(name, "parameter_name", name))
