"""The query string of GET /servers as a filter: the meaning of each parameter, and which callers may use it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import and_, or_

from django.db.models import F, Q, TextField, Value
from django.db.models.functions import Cast, StrIndex
from django.db.models.lookups import GreaterThan, Regex
from django.http import QueryDict
from django.utils.dateparse import parse_date, parse_datetime

from cloud.errors import BadRequest, Forbidden
from compute import state
from compute.contract import validation
from compute.contract.microversion import Version
from compute.errors import InvalidInput
from compute.servers.list_order import SortKey
from compute.servers.list_query import LIVING, NEWEST_FIRST

_NO_ROWS = Q(pk__in=[])
_REPEATED_GROUP = re.compile(r"\)[+*{]")  # backtracks for hours on a 40-letter name, and blocks the process
_REPETITION = re.compile(r"(?<!\\)(?:\\\\)*[+*{]")
MOST_REPETITIONS = 4
_PAGING = {"limit", "marker", "sort_key", "sort_dir"}


@dataclass(slots=True)
class Filters:
    """The parsed filters of a list of servers.

    `plain`: no filter needs data that only a cell has, and no paging, so the servers of down cells can be listed.
    `last_known`: those servers are shown with their last known state.
    """

    where: Q = field(default_factory=Q)
    all_tenants: bool = False
    project_id: str = ""
    deleted: bool | None = False  # None: deleted and living
    soft_deleted: bool | None = None  # None: treated as deleted
    plain: bool = True
    last_known: bool = False

    @property
    def is_none(self) -> bool:
        """Whether all living servers of the scope pass."""
        return self.deleted is False and self.soft_deleted is None and not self.where

    def living(self) -> Q:
        """Return the condition on deletion. Soft-deleted servers count as deleted, unless `soft_deleted` is set."""
        if self.deleted is None:
            return Q()
        found, soft = Q(deleted__in=[self.deleted]), Q(vm_state=state.VmState.SOFT_DELETED)
        if self.deleted:
            return found if self.soft_deleted is False else found | soft
        return found if self.soft_deleted else LIVING


def _tag(tag: str) -> Q:
    """Match one tag, case-sensitively: LIKE on SQLite ignores case."""
    return Q(GreaterThan(StrIndex(F("tags"), Value(f",{tag},")), 0))


def _all_tags(value: str) -> Q:
    return reduce(and_, (_tag(tag) for tag in value.split(",") if tag), Q())


def _any_tag(value: str) -> Q:
    return reduce(or_, (_tag(tag) for tag in value.split(",") if tag), _NO_ROWS)


def _regex(column: str) -> Callable[[str], Q]:
    def matches(pattern: str) -> Q:
        _check_pattern(pattern)
        if pattern == re.escape(pattern).replace("\\-", "-"):
            return Q(GreaterThan(StrIndex(F(column), Value(pattern)), 0)) if pattern else Q()
        return Q(**{f"{column}__regex": pattern})

    return matches


def _ip(pattern: str) -> Q:
    """Match a regular expression on the addresses, which are JSON: `"addr": "10.0.2.15"`."""
    _check_pattern(pattern)
    start = "" if pattern.startswith("^") else '[^"]*'
    end = '"' if pattern.endswith("$") else ""
    core = pattern.removeprefix("^").removesuffix("$")
    return Q(Regex(Cast(F("addresses"), TextField()), Value(f'"addr": ?"{start}(?:{core}){end}')))


def _check_pattern(pattern: str) -> None:
    """Raise BadRequest for an invalid regular expression, or for one whose search could take hours."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise BadRequest(f"Invalid filter: {pattern[:255]!r} is not a regular expression.") from exc
    many = len(_REPETITION.findall(pattern)) > MOST_REPETITIONS
    if len(pattern) > 255 or many or _REPEATED_GROUP.search(pattern):
        raise BadRequest(f"Invalid filter: {pattern[:255]!r} is too complex: it repeats too much to be searched for.")


def _equal(column: str) -> Callable[[str], Q]:
    return lambda value: Q(**{column: value})


def _true(column: str) -> Callable[[str], Q]:
    return lambda value: Q(**{column: validation.is_true(value)})


def _locked(value: str) -> Q:
    return ~Q(locked_by="") if validation.is_true(value) else Q(locked_by="")


def _number(column: str) -> Callable[[str], Q]:
    def same(value: str) -> Q:
        number = value.isascii() and value.isdigit() and len(value) < 10
        return Q(**{column: int(value)}) if number else _NO_ROWS

    return same


def moment(name: str, value: str) -> datetime:
    """Return a time of the query string, in UTC. Raises InvalidInput."""
    try:
        found = parse_datetime(value)
        if found is None and (day := parse_date(value)):
            found = datetime(day.year, day.month, day.day, tzinfo=UTC)
        if found is not None and found.tzinfo:
            found = found.astimezone(UTC)
    except (ValueError, OverflowError):  # the 30th of February; a time zone offset that leaves the range of datetime
        found = None
    if found is None:
        raise InvalidInput(f"Invalid input for query parameters {name}. Value: {value}. '{value}' is not a 'date-time'")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _time(column: str) -> Callable[[str], Q]:
    return lambda value: Q(**{column: moment(column, value)})


Meaning = Callable[[str], Q]
FILTERS: dict[str, tuple[Version, Meaning]] = {
    "reservation_id": ((2, 1), _equal("reservation_id")),
    "name": ((2, 1), _regex("display_name")),
    "image": ((2, 1), _equal("image_id")),
    "flavor": ((2, 1), _equal("flavor_id")),
    "ip": ((2, 1), _ip),
    "ip6": ((2, 5), _ip),
    "tags": ((2, 26), _all_tags),
    "tags-any": ((2, 26), _any_tag),
    "not-tags": ((2, 26), lambda value: ~_all_tags(value)),
    "not-tags-any": ((2, 26), lambda value: ~_any_tag(value)),
    "changes-since": ((2, 1), lambda value: Q(updated_at__gte=moment("changes-since", value))),
    "changes-before": ((2, 66), lambda value: Q(updated_at__lte=moment("changes-before", value))),
    "locked": ((2, 73), _locked),
}
SINCE_283: dict[str, Meaning] = {
    "availability_zone": _equal("availability_zone"),
    "config_drive": _true("config_drive"),
    "key_name": _equal("key_name"),
    "created_at": _time("created_at"),
    "launched_at": _time("launched_at"),
    "terminated_at": _time("terminated_at"),
    "power_state": _number("power_state"),
    "task_state": _equal("task_state"),
    "vm_state": _equal("vm_state"),
    "progress": _number("progress"),
    "user_id": _equal("user_id"),
}
HOSTNAME: Meaning = _equal("hostname")
ADMIN_FILTERS: dict[str, Meaning] = {
    "host": _equal("host"),
    "node": _equal("node"),
    "uuid": _equal("uuid"),
    "display_description": _regex("description"),
    "description": _regex("description"),
    "display_name": _regex("display_name"),
    "hostname": HOSTNAME,
    "launch_index": _number("launch_index"),
    "root_device_name": _equal("root_device_name"),
    "access_ip_v4": _equal("access_ip_v4"),
    "access_ip_v6": _equal("access_ip_v6"),
    "instance_type_id": _equal("flavor_id"),
    "image_ref": _equal("image_id"),
    "auto_disk_config": _equal("disk_config"),
}
IGNORED = {"kernel_id", "ramdisk_id", "locked_by", "block_device_mapping", "services", "metadata",
           "system_metadata", "security_groups", "info_cache", "pci_devices"}  # fmt: skip
SPECIAL = {"all_tenants", "project_id", "tenant_id", "status", "deleted", "soft_deleted", "last_known"}
SORT_COLUMNS = {
    "access_ip_v4": "access_ip_v4", "access_ip_v6": "access_ip_v6", "auto_disk_config": "disk_config",
    "availability_zone": "availability_zone", "config_drive": "config_drive", "created_at": "created_at",
    "display_description": "description", "display_name": "display_name", "host": "host", "hostname": "hostname",
    "image_ref": "image_id", "instance_type_id": "flavor_id", "key_name": "key_name",
    "launch_index": "launch_index", "launched_at": "launched_at", "locked": "locked_by", "locked_by": "locked_by",
    "node": "node",
    "power_state": "power_state", "progress": "progress", "project_id": "project_id",
    "root_device_name": "root_device_name", "task_state": "task_state", "terminated_at": "terminated_at",
    "updated_at": "updated_at", "user_id": "user_id", "uuid": "uuid", "vm_state": "vm_state",
}  # fmt: skip


def parse(query: QueryDict, version: Version, *, is_admin: bool) -> Filters:
    """Return the filters of a list. Filters the caller may not use are dropped, as in Nova.

    Raises BadRequest, InvalidInput, Forbidden.
    """
    filters = Filters()
    _check_names(query, version)
    _special(filters, query, version, is_admin=is_admin)
    for name in query:
        meaning = _meaning(name, version, is_admin=is_admin)
        if meaning is None:
            filters.plain &= name in SPECIAL or (name not in _PAGING)
            continue
        filters.plain = False
        values = query.getlist(name)
        filters.where &= reduce(or_, (meaning(value) for value in values))
    _check_span(query, version)
    return filters


def wants_last_known(query: QueryDict) -> bool:
    """Return whether the query asks for last known states. Raises InvalidInput."""
    given = query.get("last_known", "false")
    validation.check_query("last_known", given, validation.BOOLEAN)
    return validation.is_true(given)


def _check_span(query: QueryDict, version: Version) -> None:
    since, before = query.get("changes-since"), query.get("changes-before")
    if not since or not before or version < (2, 66):
        return
    if moment("changes-since", since) > moment("changes-before", before):
        raise BadRequest("The value of changes-since must be less than or equal to changes-before.")


def sorting(query: QueryDict, *, is_admin: bool) -> list[SortKey]:
    """Return the sort keys: those of the query, then uuid; newest first by default. Raises InvalidInput, Forbidden."""
    keys, directions = query.getlist("sort_key"), query.getlist("sort_dir")
    found: list[SortKey] = []
    for index, key in enumerate(keys):
        if key not in SORT_COLUMNS:
            raise _not_one_of("sort_key", key, sorted(SORT_COLUMNS))
        if key in ("host", "node") and not is_admin:
            raise Forbidden(f"Policy doesn't allow sorting by {key}.")
        direction = directions[index] if index < len(directions) else (directions[0] if directions else "desc")
        if direction not in ("asc", "desc"):
            raise _not_one_of("sort_dir", direction, ["asc", "desc"])
        if SORT_COLUMNS[key] not in [column for column, _ in found]:  # a repeated key changes nothing
            found.append((SORT_COLUMNS[key], direction == "desc"))
    found = found or NEWEST_FIRST[:1]
    if "uuid" not in [column for column, _ in found]:
        found.append(("uuid", False))
    cut = [column for column, _ in found].index("uuid") + 1
    return found[:cut]  # keys after a unique key change nothing


def _not_one_of(name: str, value: str, known: list[str]) -> InvalidInput:
    return InvalidInput(f"Invalid input for query parameters {name}. Value: {value}. '{value}' is not one of {known}")


def _check_names(query: QueryDict, version: Version) -> None:
    if version < (2, 75):
        return
    known = {*FILTERS, *SINCE_283, *ADMIN_FILTERS, *IGNORED, *SPECIAL, *_PAGING}
    for name in query:
        if name not in known or (name in FILTERS and version < FILTERS[name][0]):
            raise BadRequest(
                f"Invalid input for query parameters. Additional properties are not allowed ('{name}' was unexpected)"
            )


def _meaning(name: str, version: Version, *, is_admin: bool) -> Meaning | None:
    if name in FILTERS:
        since, meaning = FILTERS[name]
        return meaning if version >= since else None
    if name in SINCE_283:
        return SINCE_283[name] if is_admin or version >= (2, 83) else None
    if name == "hostname" and version >= (2, 90):
        return HOSTNAME
    return ADMIN_FILTERS.get(name) if is_admin else None


def _special(filters: Filters, query: QueryDict, version: Version, *, is_admin: bool) -> None:
    """Read the parameters that are not a comparison with one column."""
    filters.last_known = wants_last_known(query)
    if "all_tenants" in query:
        value = str(query["all_tenants"])
        if value and value.lower() not in {"0", "1", "true", "false", "t", "f", "yes", "no", "on", "off", "y", "n"}:
            raise InvalidInput(
                f"Invalid input for query parameters all_tenants. Value: {value}. '{value}' is not a boolean"
            )
        filters.all_tenants = not value or validation.is_true(value)
    if filters.all_tenants:
        filters.project_id = query.get("project_id") or query.get("tenant_id") or ""
    if "deleted" in query and is_admin:
        filters.deleted = validation.is_true(query["deleted"] or "true")
        filters.plain = not filters.deleted
    elif "changes-since" in query or ("changes-before" in query and version >= (2, 66)):
        filters.deleted = None
    if "soft_deleted" in query and is_admin:
        filters.soft_deleted = validation.is_true(query["soft_deleted"])
        filters.plain = False
    for status in query.getlist("status"):
        _status(filters, status, version, is_admin=is_admin)
    wanted = [state.conditions_for(status) for status in query.getlist("status")]
    if wanted:
        filters.where &= reduce(or_, (q for q in wanted if q is not None), _NO_ROWS)


def _status(filters: Filters, status: str, version: Version, *, is_admin: bool) -> None:
    filters.plain = False
    if status.upper() == "DELETED":
        if not is_admin:
            raise Forbidden("Only administrators may list deleted instances")
        filters.deleted = True
    elif status.upper() == "SOFT_DELETED":
        filters.soft_deleted = True
    elif state.conditions_for(status) is None and version >= (2, 38):
        raise BadRequest("Invalid status value")
