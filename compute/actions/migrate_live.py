"""Move a running server to another host of its cell without stopping it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cloud.errors import BadRequest
from compute import state
from compute.contract import bare_metal, policy, validation
from compute.contract.microversion import Version
from compute.errors import NoValidHost, StateConflict
from compute.hosts import fenced
from compute.migration import moves
from compute.migration.watch import MigrationWatch
from compute.models import Instance
from compute.operations import registry
from compute.operations.action import (
    OPS,
    ActionRequest,
    On,
    OnDrain,
    Role,
    StepContext,
    StepSpec,
    fault_of,
)
from compute.placement import claims
from compute.state import Move, TaskState, VmState
from compute.virt.base import MigrationAborted, PowerState

RULE = "os_compute_api:os-migrate-server:migrate_live"
MOVE = Move(frozenset({VmState.ACTIVE, VmState.PAUSED}), TaskState.MIGRATING)
HOST = {"type": ["string", "null"], "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*\Z"}
BOOLEANS: Any = validation.BOOLEAN["enum"]
AUTO = {"enum": [*BOOLEANS, "auto"]}
SECONDS_PER_GIB = 800.0  # Nova's live_migration_completion_timeout; then it is aborted


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrateLiveParams(moves.MoveParams):
    """The parameters of a live migration."""

    copies_disk: bool | None = None  # what the request says about the disk; None: as the storage is


Run = StepContext[MigrateLiveParams]


class MigrateLive(moves.Migration[MigrateLiveParams]):
    """Active or paused -> the same, elsewhere. Until `migrate_out` is done a failure undoes every step; then none."""

    key, name, called = "os-migrateLive", "live-migration", "os-migrateLive"
    policy = RULE
    role = Role.LIVE_MIGRATION
    unsupported_on_bare_metal = bare_metal.CANNOT_MOVE
    move = MOVE
    steps = (
        StepSpec("pick", "conductor_live_migrate_instance", On.CONDUCTOR, undo="release_claim", status="accepted"),
        StepSpec(
            "check_destination", "compute_check_can_live_migrate_destination", On.DEST, on_drain=OnDrain.CANCEL,
            status="queued",
        ),
        StepSpec(
            "check_source", "compute_check_can_live_migrate_source", On.SOURCE, on_drain=OnDrain.CANCEL,
            status="queued",
        ),
        StepSpec(
            "pre_migrate", "compute_pre_live_migration", On.DEST, OPS, undo="cancel_pre_migrate", status="preparing"
        ),
        StepSpec(
            "migrate_out", "compute_live_migration", On.SOURCE, OPS, undo="revert_migration", no_return=True,
            long=True, status="running",
        ),
        StepSpec(
            "finish_migration", "compute_post_live_migration_at_destination", On.DEST, OPS, status="post-migrating"
        ),
        StepSpec("cleanup_source", "compute_post_live_migration", On.SOURCE, OPS, status="post-migrating"),
    )  # fmt: skip

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """Return the JSON schema: disk_over_commit until 2.24, `auto` since 2.25, force from 2.30 to 2.67."""
        fields: dict[str, Any] = {"host": HOST, "block_migration": validation.BOOLEAN}
        if version < (2, 25):
            fields["disk_over_commit"] = validation.BOOLEAN
        else:
            fields["block_migration"] = AUTO
        required = list(fields)
        if (2, 30) <= version < (2, 68):
            fields["force"] = validation.BOOLEAN
        return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}

    def prepare(self, instance: Instance, asked: ActionRequest) -> MigrateLiveParams:
        """Check the hosts and return the params. Raises BadRequest, Conflict, Forbidden."""
        host, version = asked.body["host"] or "", asked.microversion
        forced = bool(host) and (version < (2, 30) or validation.is_true(asked.body.get("force", False)))
        if host:
            policy.check(asked.caller, f"{RULE}:host")
        moves.must_support(instance)
        if not moves.is_up(instance.host):
            raise BadRequest(f"Compute service of {instance.host} is unavailable at this time.")
        moves.must_not_drain(instance.host, leaving=True)
        if host:
            moves.must_be_possible(instance, host)
        if version < (2, 34):  # older clients get the scheduler's verdict in the response
            self._must_find_a_host(instance, host, forced=forced)
        block = asked.body["block_migration"]
        copies = None if block == "auto" else validation.is_true(block)
        return moves.begun_at(instance, MigrateLiveParams(host=host, forced=forced, copies_disk=copies))

    def check_obstacles(self, instance: Instance) -> None:
        """Raise BadRequest for a host that cannot migrate guests, and Conflict for one that drains."""
        super().check_obstacles(instance)
        moves.must_not_drain(instance.host, leaving=True)

    def _must_find_a_host(self, instance: Instance, host: str, *, forced: bool) -> None:
        try:
            moves.possible(instance, moves.wanted(instance, host, forced=forced), forced=forced)
        except NoValidHost as none:
            raise BadRequest(str(none)) from none

    # -- before the guest moves

    def pick(self, run: Run) -> None:
        """Pick a host and claim room on it."""
        _raise_if_aborted(run)
        forced = run.params.forced
        moves.claim(run, moves.wanted(run.instance, run.params.host, forced=forced), forced=forced)

    def check_destination(self, run: Run) -> None:
        """Check on the destination that no host drains. Nothing has happened to the guest yet."""
        _raise_if_aborted(run)
        moves.raise_if_draining(run)

    def check_source(self, run: Run) -> None:
        """Check on the source that no host drains and that the guest runs."""
        _raise_if_aborted(run)
        moves.raise_if_draining(run)
        if run.hypervisor.power_state(run.instance.uuid) not in (PowerState.RUNNING, PowerState.PAUSED):
            raise MigrationAborted("the guest does not run")

    def pre_migrate(self, run: Run) -> None:
        """Prepare the destination, and compare its storage with the request."""
        _raise_if_aborted(run)
        super().pre_migrate(run)
        _check_storage(run.params.copies_disk, run.params.arrival)

    # -- the move

    def migrate_out(self, run: Run) -> None:
        """Move the guest; watch for what ends it early. A guest that has left already is success."""
        seconds = SECONDS_PER_GIB * max(2.0, run.instance.memory_mb / 1024)
        watch = MigrationWatch(run, MOVE, seconds=seconds)
        if run.hypervisor.power_state(run.instance.uuid) in (PowerState.SHUTDOWN, PowerState.CRASHED):
            raise MigrationAborted("the guest does not run any more")
        try:
            went = run.hypervisor.migrate_out(run.instance.as_guest(), run.params.arrival, watch)
        except MigrationAborted:
            if watch.why and not run.params.abort:
                raise MigrationAborted(watch.why) from None
            raise
        run.note(f"{went}; forced through: {watch.why}" if watch.why else went)

    def finish_migration(self, run: Run) -> None:
        """Settle the guest on the destination; destroy it when its server was deleted on the way."""
        if run.instance.deleted:
            run.hypervisor.destroy(run.instance.uuid)
        else:
            run.hypervisor.finish_migration(run.instance.as_guest())

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """Record the new host after `finish_migration`, and free the server for the next request."""
        if not run.runs(self.finish_migration):
            return
        self._belongs_to_destination(run)
        with suppress(StateConflict):  # a delete took the server, and follows it to the new host
            state.finish(run.instance, MOVE, power_state)

    def _belongs_to_destination(self, run: Run) -> None:
        moves.arrived(run)
        claims.release(run.instance.uuid, run.params.source_node)
        registry.follow(run.instance, run.params.source)

    def retry_always(self, name: str) -> bool:
        """Return False for `finish_migration`: a guest that cannot settle is reported as lost at once."""
        return name != self.finish_migration.__name__ and super().retry_always(name)

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """Change nothing: `record_step` has recorded the arrival."""

    # -- compensation

    def revert_migration(self, run: Run) -> None:
        """Let the guest live at the source, as before."""
        if not run.instance.deleted:
            run.hypervisor.revert_migration(run.instance.as_guest())

    def release_claim(self, run: Run) -> None:
        """Release the room claimed at the destination."""
        with run.fenced():
            moves.release_claim(run)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """Leave the server as it was, with a fault unless the migration was aborted.

        A guest that is lost in `finish_migration` belongs to the destination, and its server is in ERROR.
        """
        if run.runs(self.cleanup_source):
            return
        if run.runs(self.finish_migration):
            self._belongs_to_destination(run)
            lost = Move(MOVE.start, MOVE.busy, failed=VmState.ERROR)
            state.abandon(run.instance, lost, fault_of(error), power_state)
            # what the source handed over is of no use: the guest ran on since
            fenced.schedule_cleanup(run.instance, run.params.source)
        else:
            fault = None if run.params.abort else fault_of(error)
            state.abandon(run.instance, MOVE, fault, power_state)

    # -- checks


def _raise_if_aborted(run: Run) -> None:
    """Raise MigrationAborted after a request to abort."""
    if run.params.abort:
        raise MigrationAborted("the migration was aborted")


def _check_storage(copies_disk: bool | None, arrival: Mapping[str, str]) -> None:
    """Raise MigrationAborted, with Nova's text, when block_migration contradicts the storage that was found."""
    storage = arrival.get("storage")
    if storage == "shared" and copies_disk:
        why = "not on local storage: Block migration can not be used with shared storage."
    elif storage == "own" and copies_disk is False:
        why = (
            "not on shared storage: Shared storage live-migration requires either shared storage or boot-from-volume "
            "with no local disks."
        )
    else:
        return
    raise MigrationAborted(f"{arrival['directory']} is {why}")
