"""The base of all admin pages: a URL may filter only by the page's own filters."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from unfold.admin import ModelAdmin

_FURTHER = frozenset({"id", "pk", "exact", "in", "isnull"})  # the suffixes that list filters add to a field's name


class ModelPage(ModelAdmin):
    """The admin pages of a model."""

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only lookups of `list_filter`. Django would run any: `?name__regex=((` is a database error."""
        declared = {_parameter(one) for one in self.list_filter}
        field, *further = lookup.split("__")
        return field in declared and _FURTHER.issuperset(further)


def _parameter(declared: Any) -> str:
    """Return the name that an entry of `list_filter` has in a URL."""
    name = declared[0] if isinstance(declared, list | tuple) else declared
    return str(getattr(name, "parameter_name", name))
