"""Servers that are in no cell yet, for lists: build requests with the columns of an Instance."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, DateTimeField, F, Func, IntegerField, QuerySet, TextField, Value
from django.db.models.fields import Field
from django.db.models.functions import Cast

from cells.models import BuildRequest


class _Asked(Func):
    """A requested column as text. Django's own JSON lookup returns the text "null" for a JSON null on SQLite."""

    template = "(%(expressions)s)"
    arg_joiner = " ->> "
    output_field = TextField()


def _asked(name: str, kind: Field[Any, Any] | None = None) -> Cast:
    return Cast(_Asked(F("instance"), Value(name)), kind or TextField())


def _fixed(value: Any, kind: Field[Any, Any] | None = None) -> Cast:
    """A column with the same value for every such server; ORDER BY a bare constant is not possible."""
    return Cast(Value(value), kind or TextField())


_TEXTS = ("display_name", "description", "hostname", "availability_zone", "flavor_id", "image_id", "key_name",
          "tags", "access_ip_v4", "access_ip_v6", "disk_config", "reservation_id")  # fmt: skip
_COLUMNS = {
    "uuid": F("server_id"),
    "updated_at": F("created_at"),
    **{name: _asked(name) for name in _TEXTS},
    "launch_index": _asked("launch_index", IntegerField()),
    "vm_state": _fixed("building"),
    "task_state": _fixed("scheduling"),
    "root_device_name": _fixed("/dev/vda"),
    "addresses": _fixed("{}"),
    **{name: _fixed("") for name in ("host", "node", "locked_by")},
    **{name: _fixed(0, IntegerField()) for name in ("power_state", "progress")},
    **{name: Value(None, DateTimeField(null=True)) for name in ("launched_at", "terminated_at")},
    **{name: Value(value=False, output_field=BooleanField()) for name in ("deleted", "config_drive")},
}


def any_there() -> bool:
    """Whether there is any; usually not, and this is cheaper than `servers()`."""
    return BuildRequest.objects.exists()


def servers() -> QuerySet[BuildRequest]:
    """Return all of them; they take the filters and the order that `Instance` takes."""
    return BuildRequest.objects.filter(delete_requested=False).annotate(**_COLUMNS)
