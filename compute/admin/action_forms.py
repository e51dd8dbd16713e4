"""The forms of server actions, built from each action's own schema; a request goes the same way as one of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import HttpRequest, QueryDict
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from cells.models import HostMapping, InstanceMapping
from cloud.caller import ADMIN, Caller
from cloud.errors import ApiError
from cloud.images import service
from compute.contract import microversion
from compute.models import Flavor
from compute.operations import registry, submit
from compute.operations.action import ActionRequest, AnyAction
from compute.servers import deferred_deletes, lookup
from compute.shutdown import options

Choices = list[tuple[str, str]]
VERSION = microversion.MAXIMUM
# Optional fields that a form has besides the required ones. Other optional fields are for API clients.
WORTH_ASKING = frozenset({
    "host", "locked_reason", "rescue_image_ref", "availability_zone", options.TYPE, options.TIMEOUT,
})  # fmt: skip
SHUTDOWN_TYPES: Choices = [("SOFT", "soft: the guest gets its grace period"), ("HARD", "hard: power is cut at once")]
MOST = 200  # choices in a list
DELETE = "delete"  # not an action in the API: it is the DELETE method
LABELS = {
    "flavorRef": "Flavor", "imageRef": "Image", "rescue_image_ref": "Image to boot", "host": "Destination host",
    options.TYPE: "Shutdown type", options.TIMEOUT: "Grace period, in seconds",
    "block_migration": "Copy the disk", "backup_type": "Backup type, e.g. daily", "rotation": "Backups to keep",
    "locked_reason": "Reason", "availability_zone": "Availability zone",
}  # fmt: skip


def caller(request: HttpRequest, mapping: InstanceMapping) -> Caller:
    """Return an admin as caller, in the server's project: an image the action creates belongs to that project."""
    user = request.user
    return Caller(str(user.pk), user.get_username(), mapping.project_id, roles=ADMIN)


def may_ask(request: HttpRequest) -> bool:
    """Return whether the user has Django's permission to change servers."""
    return bool(request.user.has_perm("cells.change_instancemapping"))  # type: ignore[union-attr]


class FieldChoices:
    """The values to choose from. Each is read only when a field needs it."""

    def __init__(self, mapping: InstanceMapping) -> None:
        self.cell_id = mapping.cell_id

    def of(self, name: str) -> Choices | None:
        """Return the choices of a field; None for a field that is typed."""
        found = {"flavorRef": self._flavors, "imageRef": self._images, "rescue_image_ref": self._images,
                 "host": self._hosts, options.TYPE: lambda: SHUTDOWN_TYPES}.get(name)  # fmt: skip
        return found() if found else None

    def _flavors(self) -> Choices:
        found = Flavor.objects.filter(disabled=False).order_by("memory_mb", "name")[:MOST]
        size = "{0.name}: {0.vcpus} CPUs, {0.memory_mb} MiB, {0.disk_gb} GiB"
        return [(flavor.flavor_id, size.format(flavor)) for flavor in found]

    def _images(self) -> Choices:
        found = service.visible(Caller("", roles=ADMIN)).filter(status="active").order_by("name")
        return [(str(pk), f"{name or pk}") for pk, name in found.values_list("pk", "name")[:MOST]]

    def _hosts(self) -> Choices:
        hosts = HostMapping.objects.filter(cell_id=self.cell_id).order_by("host")
        return [(host, host) for host in hosts.values_list("host", flat=True)[:MOST]]


def form_of(action: AnyAction, lists: FieldChoices, data: QueryDict | None = None) -> forms.Form:
    """Return the form of an action: its required fields, and those of WORTH_ASKING."""
    fields = {}
    schema = action.schema(VERSION)
    required = _required(schema)
    for name, spec in schema.get("properties", {}).items():
        if name in required or name in WORTH_ASKING:
            fields[name] = _field(name, spec, lists, must=name in required and not _may_be_null(spec))
    kind = type("ActionForm", (forms.Form,), fields)
    return kind(data, auto_id=f"{action.key}-%s")  # type: ignore[no-any-return]


def _field(name: str, spec: Mapping[str, Any], lists: FieldChoices, *, must: bool) -> forms.Field:
    label = LABELS.get(name, name.replace("_", " ").capitalize())
    choices = lists.of(name) or _enum_choices(spec)
    if choices is not None:
        some = choices if must else [("", "-"), *choices]
        return forms.ChoiceField(choices=some, label=label, required=must, widget=UnfoldAdminSelectWidget)
    if "integer" in spec.get("type", ()) or "between" in spec:
        least, most = spec.get("between", (spec.get("minimum"), None))
        return forms.IntegerField(min_value=least, max_value=most, label=label, required=must,
                                  widget=UnfoldAdminIntegerFieldWidget)  # fmt: skip
    return forms.CharField(label=label, required=must, max_length=255, widget=UnfoldAdminTextInputWidget)


def _enum_choices(spec: Mapping[str, Any]) -> Choices | None:
    """Return the values of an enum, each once: Nova accepts many spellings of one value."""
    words = [str(word) for word in spec.get("enum", ())]
    if "auto" in words:  # the hosts can decide
        return [("auto", "automatic"), ("true", "yes"), ("false", "no")]
    once = {word.lower(): word for word in reversed(words)}
    return [(word, word.lower()) for word in sorted(once.values(), reverse=True)] or None  # soft before hard


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the required fields, with those of the schema's `else`: where a field has two names, the usual one."""
    return frozenset((*schema.get("required", ()), *schema.get("else", {}).get("required", ())))


def _may_be_null(spec: Mapping[str, Any]) -> bool:
    return "null" in spec.get("type", ())


def carry_out(request: HttpRequest, mapping: InstanceMapping) -> str:
    """Carry out a pressed button and return a message for the user. What is accepted is written to the admin log."""
    if request.POST.get("verb") == DELETE:
        return _delete(request, mapping)
    action = registry.keyed(request.POST.get("verb", ""), VERSION)
    if action is None or action.reads_only:
        return "Unknown action."
    form = form_of(action, FieldChoices(mapping), request.POST)
    if not form.is_valid():
        return "; ".join(f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items())
    try:
        parsed, value = submit.parse({action.key: _body(action, form.cleaned_data)}, VERSION)
        who = caller(request, mapping)
        with lookup.server(mapping.server_id, who) as instance:
            submit.submit(parsed, instance, ActionRequest(who, str(getattr(request, "request_id", "")), value, VERSION))
    except ApiError as refusal:
        return f"{_name(action)} was refused: {refusal.message}"
    trace(request, mapping, _name(action))
    return f"{_name(action)} was accepted."


def _delete(request: HttpRequest, mapping: InstanceMapping) -> str:
    asked = ActionRequest(caller(request, mapping), str(getattr(request, "request_id", "")), {}, VERSION)
    try:
        is_begun = deferred_deletes.delete_or_defer(mapping, asked)
    except ApiError as refusal:
        return f"delete was refused: {refusal.message}"
    trace(request, mapping, "delete")
    return "delete was accepted." if is_begun else "delete was accepted; it runs when the cell is up again."


def trace(request: HttpRequest, mapping: InstanceMapping, what: str) -> None:
    """Write who requested what to Django's admin log; the server's history has it as well."""
    LogEntry.objects.log_actions(str(request.user.pk), [mapping], CHANGE, change_message=what)  # type: ignore[list-item]


def _body(action: AnyAction, said: Mapping[str, Any]) -> Any:
    """Return the value of the action's key; None for a form without values, unless the schema requires an object."""
    schema = action.schema(VERSION)
    required = _required(schema)
    said = {name: None if value == "" else value for name, value in said.items()}
    body = {name: value for name, value in said.items() if value is not None or name in required}
    return body if body or schema.get("type") == "object" else None


def _name(action: AnyAction) -> str:
    return action.key.removeprefix("os-")
