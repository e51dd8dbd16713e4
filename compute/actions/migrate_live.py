"""Move a running server to another host of its cell without stopping it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.utils import timezone

from cloud.errors import BadRequest
from compute import actions, bare_metal, claims, gone, journal, moving, policy, running, schema, state
from compute.errors import NoValidHost, StateConflict
from compute.lifecycle import OPS, Asked, On, OnDrain, Run, ServerAction, StepSpec, fault_of
from compute.microversion import Version
from compute.models import Instance, InstanceAction, Step
from compute.state import Move, TaskState, VmState
from compute.virt.base import MigrationAborted, PowerState

RULE = "os_compute_api:os-migrate-server:migrate_live"
MOVE = Move(frozenset({VmState.ACTIVE, VmState.PAUSED}), TaskState.MIGRATING)
HOST = {"type": ["string", "null"], "minLength": 1, "maxLength": 255, "pattern": r"^[a-zA-Z0-9-._]*\Z"}
TRUTHS: Any = schema.BOOLEAN["enum"]
AUTO = {"enum": [*TRUTHS, "auto"]}
SECONDS_PER_GIB = 800.0  # Nova's live_migration_completion_timeout; then it is aborted


class MigrateLive(ServerAction):
    """Active or paused, and so again, elsewhere. Before `migrate` is done every step is taken back; after it, none."""

    key, name, called = "os-migrateLive", "live-migration", "os-migrateLive"
    policy = RULE
    not_of_machines = bare_metal.CANNOT_MOVE
    move = MOVE
    steps = (
        StepSpec("pick", "conductor_live_migrate_instance", On.CONDUCTOR, undo="give_back"),
        StepSpec("check_destination", "compute_check_can_live_migrate_destination", On.DEST, on_drain=OnDrain.CANCEL),
        StepSpec("check_source", "compute_check_can_live_migrate_source", On.SOURCE, on_drain=OnDrain.CANCEL),
        StepSpec("expect", "compute_pre_live_migration", On.DEST, OPS, undo="unexpect"),
        StepSpec("migrate", "compute_live_migration", On.SOURCE, OPS, undo="stay", no_return=True, long=True),
        StepSpec("arrive", "compute_post_live_migration_at_destination", On.DEST, OPS),
        StepSpec("clean_up_source", "compute_post_live_migration", On.SOURCE, OPS),
    )

    # -- API side

    def schema(self, version: Version) -> dict[str, Any]:
        """disk_over_commit went in 2.25, when `auto` came; force is of 2.30 to 2.67."""
        fields: dict[str, Any] = {"host": HOST, "block_migration": schema.BOOLEAN}
        if version < (2, 25):
            fields["disk_over_commit"] = schema.BOOLEAN
        else:
            fields["block_migration"] = AUTO
        required = list(fields)
        if (2, 30) <= version < (2, 68):
            fields["force"] = schema.BOOLEAN
        return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}

    def prepare(self, instance: Instance, asked: Asked) -> dict[str, Any]:
        """What is wrong from the start is said at once."""
        host, version = asked.body["host"] or "", asked.microversion
        forced = bool(host) and (version < (2, 30) or schema.is_true(asked.body.get("force", False)))
        if host:
            policy.check(asked.caller, f"{RULE}:host")
        moving.must_support(instance)
        if not moving.is_up(instance.host):
            raise BadRequest(f"Compute service of {instance.host} is unavailable at this time.")
        moving.must_take_part(instance.host, leaving=True)
        if host:
            moving.must_be_possible(instance, host)
        if version < (2, 34):  # before that its clients wait for the answer of the scheduler
            self._must_find_a_host(instance, host, forced=forced)
        block = asked.body["block_migration"]
        copies = None if block == "auto" else schema.is_true(block)
        return {**moving.begun_at(instance), "host": host, "forced": forced, "copies_disk": copies}

    def _must_find_a_host(self, instance: Instance, host: str, *, forced: bool) -> None:
        try:
            moving.possible(instance, moving.wanted(instance, host, forced=forced), forced=forced)
        except NoValidHost as none:
            raise BadRequest(str(none)) from none

    # -- before the guest moves

    def pick(self, run: Run) -> None:
        """A host, and room on it."""
        _must_be_wanted(run)
        forced = run.params["forced"]
        moving.claim(run, moving.wanted(run.instance, run.params["host"], forced=forced), forced=forced)

    def check_destination(self, run: Run) -> None:
        """Can it take the guest? Nothing has happened yet."""
        _must_be_wanted(run)
        moving.must_go_on(run)

    def check_source(self, run: Run) -> None:
        """Is the guest here, and fit to move?"""
        _must_be_wanted(run)
        moving.must_go_on(run)
        if run.hypervisor.power_state(run.instance.uuid) not in (PowerState.RUNNING, PowerState.PAUSED):
            raise MigrationAborted("the guest does not run")

    def expect(self, run: Run) -> None:
        """The destination makes ready, and says where it is to be found."""
        _must_be_wanted(run)
        arrival = run.hypervisor.expect(run.instance.as_guest())
        _must_be_as_asked(run.params.get("copies_disk"), arrival)
        run.change_params(arrival=dict(arrival))

    # -- the move

    def migrate(self, run: Run) -> None:
        """As long as it takes, with an eye on who wants it to stop. Gone already is success."""
        seconds = SECONDS_PER_GIB * max(2.0, run.instance.memory_mb / 1024)
        deadline = run.deadline(seconds)
        watch = moving.watching(run, MOVE, deadline=deadline)
        if run.hypervisor.power_state(run.instance.uuid) in (PowerState.SHUTDOWN, PowerState.CRASHED):
            raise MigrationAborted("the guest does not run any more")
        try:
            went = run.hypervisor.hand_over(run.instance.as_guest(), run.params["arrival"], watch)
        except MigrationAborted:
            if timezone.now() > deadline and not run.params.get("abort"):
                raise MigrationAborted(f"the migration was not over after {seconds:.0f} s") from None
            raise
        run.note(went)

    def arrive(self, run: Run) -> None:
        """The guest lives here now; one whose server was deleted on the way ends here."""
        if run.instance.deleted:
            run.hypervisor.destroy(run.instance.uuid)
        else:
            run.hypervisor.settle(run.instance.as_guest())

    def clean_up_source(self, run: Run) -> None:
        """Nothing is left where it was; a guest that came back meanwhile is left alone."""
        moving.forget(run, run.params["source"])

    def record_step(self, run: Run, power_state: PowerState | None) -> None:
        """With its arrival a server belongs to its new host, and is free for the next request."""
        if run.step.name != "arrive":
            return
        self._belongs_to_destination(run)
        with suppress(StateConflict):  # a delete took it, and follows it
            state.finish(run.instance, MOVE, power_state)

    def _belongs_to_destination(self, run: Run) -> None:
        moving.arrived(run)
        claims.release(run.instance.uuid, run.params["source_node"])
        actions.follow(run.instance, run.params["source"])

    def insists_on(self, name: str) -> bool:
        """A guest that cannot settle is said to be lost at once."""
        return name != "arrive" and super().insists_on(name)

    def complete(self, run: Run, power_state: PowerState | None) -> None:
        """All was recorded with the arrival."""

    # -- taking it back

    def stay(self, run: Run) -> None:
        """The guest lives at the source, as before."""
        if not run.instance.deleted:
            run.hypervisor.take_back(run.instance.as_guest())

    def unexpect(self, run: Run) -> None:
        """The destination waits no more."""
        run.hypervisor.unexpect(run.instance.uuid)

    def give_back(self, run: Run) -> None:
        """The room claimed at the destination."""
        with run.fenced():
            moving.give_back(run)

    def abandon(self, run: Run, error: BaseException, power_state: PowerState | None) -> None:
        """As it was, where it was. One that was aborted has no fault; one lost on its way is in ERROR."""
        if run.step.name == "clean_up_source":
            return
        if run.step.name == "arrive":
            self._belongs_to_destination(run)
            lost = Move(MOVE.start, MOVE.busy, failed=VmState.ERROR)
            state.abandon(run.instance, lost, fault_of(error), power_state)
            gone.leave(run.instance, run.params["source"])  # what it handed over is of no use: the guest ran on since
        else:
            fault = None if run.params.get("abort") else fault_of(error)
            state.abandon(run.instance, MOVE, fault, power_state)

    # -- while it goes on

    def abort(self, row: InstanceAction) -> None:
        """End it early. What nobody has begun ends here; what runs reads the flag, draining or not."""
        journal.change_params(row, abort=True)
        for step in row.steps.select_related("action").filter(state=Step.State.QUEUED):
            running.call_off(self, step, "the migration was aborted")

    def force(self, row: InstanceAction) -> None:
        """Have the guest leave now, whatever it costs it."""
        journal.change_params(row, force=True)


def _must_be_wanted(run: Run) -> None:
    """Raises MigrationAborted when somebody called it off."""
    if run.params.get("abort"):
        raise MigrationAborted("the migration was aborted")


def _must_be_as_asked(copies_disk: bool | None, arrival: Mapping[str, str]) -> None:
    """Whether hosts share storage is found out; who said something else is told so, in Nova's words."""
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
