"""Servers no cell has yet, as a list can ask for them: build requests with the columns of an Instance."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, DateTimeField, F, Func, IntegerField, QuerySet, TextField, Value
from django.db.models.fields import Field
from django.db.models.functions import Cast

from cells.models import BuildRequest


class _Asked(Func):
    """A column that is known already, as text. Django's own lookup makes the word "null" of JSON's null on SQLite."""

    template = "(%(expressions)s)"
    arg_joiner = " ->> "
    output_field = TextField()


def _asked(name: str, kind: Field[Any, Any] | None = None) -> Cast:
    return Cast(_Asked(F("instance"), Value(name)), kind or TextField())


def _fixed(value: Any, kind: Field[Any, Any] | None = None) -> Cast:
    """A column every such server has the same of; a bare constant could not be sorted by."""
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
    """Mostly not; knowing so is cheaper than asking for all those columns."""
    return BuildRequest.objects.exists()


def servers() -> QuerySet[BuildRequest]:
    """All of them; takes the filters and the order that `Instance` takes."""
    return BuildRequest.objects.filter(delete_requested=False).annotate(**_COLUMNS)
