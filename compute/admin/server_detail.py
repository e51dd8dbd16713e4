"""The page of one server: its columns, its fault, and its history.

Parameters of actions, user data and keys are not read at all: they may hold secrets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.forms import Form
from django.utils import timezone

from cells import admin_widgets as look
from cells import scatter
from cells.models import Cell, InstanceMapping
from cloud.caller import Caller
from compute import state
from compute.admin import action_forms, allowed_actions, badges, last_known, server_warnings, shutdown_progress
from compute.models import Instance, InstanceAction, Step
from compute.operations import repair
from compute.power import flap_guard, sync_policy

ACTIONS = 50  # newest first
SECRETS = ("key_data", "user_data")


@dataclass(slots=True)
class ActionHistory:
    """One action with its steps."""

    action: InstanceAction
    rows: list[Step]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps as the template shows them."""
        return [
            {
                "row": row, "state": badges.step_state(row), "took": _took(row) if row.started_at else "-",
                "is_open": row.is_open, "warning": repair.warning(row),
            }
            for row in self.rows
        ]  # fmt: skip

    @property
    def took(self) -> str:
        """How long the action took, or has run."""
        return _took(self.action)


@dataclass(frozen=True, slots=True)
class ServerData:
    """The data a cell has of one server."""

    instance: Instance | None = None
    history: list[ActionHistory] = field(default_factory=list)
    choices: list[allowed_actions.AllowedAction] = field(default_factory=list)
    around: server_warnings.HostsOfServers | None = None


@dataclass(slots=True)
class Button:
    """A button of the page: an action with its form, or the reason why it is not allowed now."""

    key: str
    name: str
    meaning: str
    why_not: str
    form: Form | None


def context(mapping: InstanceMapping, who: Caller | None = None) -> dict[str, Any]:
    """Return the template's context. Buttons need `who`; None: the user may not press any."""
    cell = mapping.cell
    found = scatter.gather([cell], lambda _: _read(mapping.server_id, who)) if cell else scatter.CellAnswers({}, {})
    read = found.answers.get(cell.pk, ServerData()) if cell else ServerData()
    down, instance = (found.down.get(cell.pk) if cell else None), read.instance
    last = last_known.of([mapping.pk]).get(mapping.pk) if down else None
    return {
        "title": f"Server {mapping.server_id}",
        "mapping": mapping,
        "name": instance.display_name if instance else last.name if last else mapping.server_id,
        "status": _status(mapping, instance, down),
        "trouble": read.around.sign(instance) if read.around and instance else "",
        "since": look.down_for(cell.pk) if cell else "",
        "down": down,
        "last": last and {"age": last_known.age(last), "rows": last_known.rows(last)},
        "known": _known(mapping) + (_columns(instance) + _power(instance, read.history) if instance else []),
        "fault": instance.fault if instance else None,
        "countdown": _countdown(instance, read) if instance else None,
        "history": read.history,
        "limit": ACTIONS,
        "buttons": _buttons_while(mapping, down) if down and who else _buttons(mapping, read.choices),
        "may_repair": who is not None and down is None,
        "busy": bool(instance and instance.task_state),
        "now": timezone.now(),
    }


def _buttons_while(mapping: InstanceMapping, down: scatter.CellFailure) -> list[Button]:
    """Return the buttons of a server whose cell is down: only delete can be pressed."""
    since = f"does not answer for {look.down_for(str(mapping.cell_id))} ({down.reason})"
    why = f"cell {mapping.cell} {since}; only a delete is accepted; it runs when the cell is up again"
    asked = "a delete is already requested; it runs when the cell is up again" if mapping.queued_for_delete else ""
    meaning = "The delete is accepted now and runs when the cell is up again. Quotas no longer count the server."
    delete = Button(action_forms.DELETE, action_forms.DELETE, meaning, asked, None if asked else Form())
    return [delete, *_buttons(mapping, allowed_actions.none(why))]


def _buttons(mapping: InstanceMapping, choices: list[allowed_actions.AllowedAction]) -> list[Button]:
    """Return the buttons, allowed actions first."""
    lists = action_forms.FieldChoices(mapping)
    made = [
        Button(
            choice.key, choice.key.removeprefix("os-"), (type(choice.action).__doc__ or "").partition("\n")[0],
            choice.why_not, None if choice.why_not else action_forms.form_of(choice.action, lists),
        )
        for choice in choices
    ]  # fmt: skip
    return sorted(made, key=lambda button: bool(button.why_not))


def _read(server_id: str, who: Caller | None) -> ServerData:
    """Return the data of a server in the targeted cell."""
    instance = Instance.objects.filter(uuid=server_id).defer(*SECRETS).first()
    choices = allowed_actions.choices(instance, who) if instance is not None and who is not None else []
    actions = list(
        InstanceAction.objects.filter(server_id=server_id).defer("params").order_by("-started_at")[:ACTIONS]
    )
    steps: dict[int, list[Step]] = {}
    rows = {action.pk: action for action in actions}
    for step in Step.objects.filter(action__in=actions).order_by("queued_at", "pk"):
        step.action = rows[step.action_id]
        steps.setdefault(step.action_id, []).append(step)
    past = [ActionHistory(action, steps.get(action.pk, [])) for action in actions]
    return ServerData(instance, past, choices, server_warnings.around([instance]) if instance else None)


def _countdown(instance: Instance, read: ServerData) -> shutdown_progress.ShutdownProgress | None:
    waits = [(past.action, row) for past in reversed(read.history) for row in past.rows]
    return shutdown_progress.of(waits, instance.task_state, read.choices)


def _took(row: InstanceAction | Step) -> str:
    """Return how long an action or step took, or has run."""
    if row.finished_at is None or row.started_at is None:
        return f"{look.age(row.started_at)}, not finished"
    return look.seconds((row.finished_at - row.started_at).total_seconds())


def _status(mapping: InstanceMapping, instance: Instance | None, down: scatter.CellFailure | None) -> Any:
    if down is not None:
        return badges.status("UNKNOWN", down.reason)
    if instance is None:
        return look.label("not scheduled yet" if mapping.cell is None else "not found in its cell", look.GREY, "…")
    return badges.status(state.status(instance.vm_state, instance.task_state))


def _known(mapping: InstanceMapping) -> list[tuple[str, Any]]:
    """Return what the global database has, also while the cell is down."""
    cell: Cell | None = mapping.cell
    return [
        ("Id", mapping.server_id),
        ("Cell", f"{cell.name} ({cell.pk})" if cell else "none yet"),
        ("Project", mapping.project_id),
        ("User", mapping.user_id),
        ("Requested at", f"{mapping.created_at:%F %T} ({look.age(mapping.created_at)} ago)"),
        ("Delete requested", "yes" if mapping.queued_for_delete else "no"),
    ]


def _columns(instance: Instance) -> list[tuple[str, Any]]:
    return [
        ("Name", instance.display_name),
        ("State", f"{instance.vm_state} / {instance.task_state or 'idle'} (generation {instance.generation})"),
        ("Power state", badges.power(instance.power_state)),
        ("Host", f"{instance.host or '-'} ({instance.node or '-'})"),
        ("Availability zone", instance.availability_zone or "-"),
        ("Instance name", instance.instance_name),
        ("Flavor", f"{instance.flavor.get('original_name', instance.flavor_id)}: {instance.vcpus} CPUs, "
                   f"{instance.memory_mb} MiB, {instance.disk_gb} GiB"),
        ("Image", instance.image_id or "-"),
        ("Key pair", instance.key_name or "-"),
        ("Locked", f"{instance.locked_by}: {instance.locked_reason or '-'}" if instance.locked_by else "no"),
        ("Launched", f"{instance.launched_at:%F %T}" if instance.launched_at else "never"),
        ("Last change", f"{look.age(instance.updated_at)} ago"),
        ("Deleted", _deleted(instance)),
    ]  # fmt: skip


def _power(instance: Instance, history: list[ActionHistory]) -> list[tuple[str, Any]]:
    """Return the server's power authority, and whether its power state is left alone because it flaps."""
    own, who = sync_policy.own_authority(instance)
    lines: list[tuple[str, Any]] = [("Power authority", f"{own}, set by {who}" if own else "setting of its host")]
    if any(flap_guard.is_on(past.action) for past in history):
        why = "its power state was restored too often; restoring resumes when the state no longer changes"
        lines.append(("Power sync", look.label("suspended", look.BAD, "✖", why)))
    return lines


def _deleted(instance: Instance) -> str:
    if instance.deleted_at is None and instance.soft_deleted_at is not None:
        return f"soft-deleted {look.age(instance.soft_deleted_at)} ago: it can be restored"
    return f"{instance.deleted_at:%F %T}" if instance.deleted_at else "no"
