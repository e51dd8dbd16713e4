"""The policy: Nova's rule names and who passes each, in one table.

Scopes are projects: a role counts in the project of the token. `admin` counts everywhere.
"""

from __future__ import annotations

from enum import StrEnum

from cloud.caller import Caller
from cloud.errors import Forbidden


class Rule(StrEnum):
    """The kinds of rules (Nova documentation, "Policy Concepts")."""

    ADMIN = "admin"
    MANAGER = "manager in the project, or admin"
    MEMBER = "member in the project, or admin"
    READER = "reader in the project, or admin"
    SERVICE = "service, or admin"
    OWN = "the user itself, or admin"
    ANYONE = "anybody with a token"


A, MG, M, R, S, U, ANY = (
    Rule.ADMIN, Rule.MANAGER, Rule.MEMBER, Rule.READER, Rule.SERVICE, Rule.OWN, Rule.ANYONE
)  # fmt: skip
_P = "os_compute_api:"
RULES: dict[str, Rule] = {
    (name if name.startswith("compute:") else f"{_P}{name}"): rule
    for name, rule in {
        "servers:index": R, "servers:detail": R, "servers:show": R,
        "servers:index:get_all_tenants": A, "servers:detail:get_all_tenants": A,
        "servers:allow_all_filters": A, "servers:show:host_status": A,
        "servers:create": M, "servers:create:forced_host": A,
        "servers:create:zero_disk_flavor": A, "servers:create:cell_down": A,
        "compute:servers:create:requested_destination": A,
        "servers:update": M, "servers:delete": M,
        "servers:start": M, "servers:stop": M, "servers:reboot": M, "servers:create_image": M,
        "os-create-backup": M, "os-deferred-delete:restore": M, "os-deferred-delete:force": M,
        "os-rescue": M, "os-unrescue": M,
        "os-shelve:shelve": M, "os-shelve:unshelve": M,
        "os-shelve:shelve_offload": A, "os-shelve:unshelve_to_host": A,
        "os-pause-server:pause": M, "os-pause-server:unpause": M,
        "os-suspend-server:suspend": M, "os-suspend-server:resume": M,
        "os-lock-server:lock": M, "os-lock-server:unlock": M,
        "os-lock-server:unlock:unlock_override": A,
        "servers:rebuild": M, "os-evacuate": A,
        "servers:resize": M, "servers:confirm_resize": M, "servers:revert_resize": M,
        "os-migrate-server:migrate": MG, "os-migrate-server:migrate:host": A,
        "os-migrate-server:migrate_live": MG, "os-migrate-server:migrate_live:host": A,
        "servers:migrations:index": MG, "servers:migrations:index:host": A, "servers:migrations:show": A,
        "servers:migrations:force_complete": A, "servers:migrations:delete": A,
        "os-migrations:index": MG, "os-migrations:index:all_projects": A, "os-migrations:index:host": A,
        "os-admin-actions:reset_state": A, "os-console-output": M,
        "os-extended-server-attributes": A,
        "server-metadata:index": R, "server-metadata:show": R, "server-metadata:create": M,
        "server-metadata:update_all": M, "server-metadata:update": M, "server-metadata:delete": M,
        "os-server-tags:index": R, "os-server-tags:show": R, "os-server-tags:update": M,
        "os-server-tags:update_all": M, "os-server-tags:delete": M, "os-server-tags:delete_all": M,
        "ips:index": R, "ips:show": R,
        "os-instance-actions:list": R, "os-instance-actions:show": R,
        "os-instance-actions:events": A, "os-instance-actions:events:details": A,
        "os-flavor-manage:create": A, "os-flavor-manage:update": A, "os-flavor-manage:delete": A,
        "os-flavor-access": A, "os-flavor-access:add_tenant_access": A,
        "os-flavor-access:remove_tenant_access": A,
        "os-flavor-extra-specs:index": R, "os-flavor-extra-specs:show": R,
        "os-flavor-extra-specs:create": A, "os-flavor-extra-specs:update": A,
        "os-flavor-extra-specs:delete": A,
        "os-keypairs:index": U, "os-keypairs:show": U, "os-keypairs:create": U, "os-keypairs:delete": U,
        "os-services:list": A, "os-services:update": A, "os-services:delete": A,
        "os-hypervisors:list": A, "os-hypervisors:list-detail": A, "os-hypervisors:show": A,
        "os-hypervisors:statistics": A, "os-hypervisors:uptime": A, "os-hypervisors:search": A,
        "os-hypervisors:servers": A,
        "os-aggregates:index": A, "os-aggregates:show": A, "os-aggregates:create": A, "os-aggregates:update": A,
        "os-aggregates:delete": A, "os-aggregates:add_host": A, "os-aggregates:remove_host": A,
        "os-aggregates:set_metadata": A,
        "os-server-external-events:create": S,
        "os-server-groups:index": R, "os-server-groups:index:all_projects": A, "os-server-groups:show": R,
        "os-server-groups:create": M, "os-server-groups:delete": M,
        "os-availability-zone:list": ANY, "os-availability-zone:detail": A,
        "limits": ANY, "limits:other_project": A,
        "os-quota-sets:show": R, "os-quota-sets:detail": A, "os-quota-sets:defaults": ANY,
        "os-quota-sets:update": A, "os-quota-sets:delete": A,
    }.items()
}  # fmt: skip
_ROLE = {Rule.MANAGER: "manager", Rule.MEMBER: "member", Rule.READER: "reader"}


def allows(caller: Caller, rule: str, project_id: str | None = None, user_id: str | None = None) -> bool:
    """Return whether the caller passes a rule, for an object of `project_id` (default: the caller's own)."""
    kind = RULES[rule]
    if caller.is_admin or kind is Rule.ANYONE:
        return True
    if kind is Rule.SERVICE:
        return caller.has_role("service")
    if kind is Rule.OWN:
        return user_id in (None, caller.user_id)
    if kind is Rule.ADMIN or not caller.project_id:
        return False
    return caller.has_role(_ROLE[kind]) and project_id in (None, caller.project_id)


def check(caller: Caller, rule: str, project_id: str | None = None, user_id: str | None = None) -> None:
    """As `allows`. Raises Forbidden with Nova's text."""
    if not allows(caller, rule, project_id, user_id):
        raise Forbidden(f"Policy doesn't allow {rule} to be performed.")
