"""Build a server on the host that was picked for it; try other hosts of the cell when that fails."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.utils import timezone

from compute import state
from compute.errors import NoValidHost
from compute.operations import journal, versions
from compute.operations.action import (
    MAX_TRIES,
    ActionParams,
    On,
    OnDrain,
    ServerAction,
    StepContext,
    StepSpec,
)
from compute.placement import claims, inventory
from compute.scheduler import requirements, select
from compute.servers import image_transfer
from compute.state import Move, TaskState, VmState
from compute.virt.base import ImageUnusable, PowerState, VirtError

MOVE = Move(frozenset({VmState.BUILDING}), TaskState.SPAWNING, VmState.ACTIVE, failed=VmState.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateParams(ActionParams):
    """The parameters of a boot."""

    image_ticket: str = ""  # permits the download
    availability_zone: str = ""  # with the next three: where the user wants it, as in `Requirements.destination()`
    host: str = ""
    hypervisor_hostname: str = ""
    forced: bool = False
    tried: list[str] = field(default_factory=list)  # the hosts, or nodes of bare metal, on which it failed
    why: str = ""  # the last failure

    @property
    def wanted(self) -> dict[str, Any]:
        """As `Requirements.destination()`."""
        return {
            "availability_zone": self.availability_zone, "host": self.host,
            "hypervisor_hostname": self.hypervisor_hostname, "forced": self.forced,
        }  # fmt: skip


class Create(ServerAction[CreateParams]):
    """Building -> active. Recorded by the scheduler, together with the server's row."""

    name = "create"
    policy = "os_compute_api:servers:create"
    move = MOVE
    steps = (StepSpec("build", "compute__do_build_and_run_instance", on_drain=OnDrain.ELSEWHERE, long=True),)
    elsewhere = StepSpec("reschedule", "conductor_build_instances", on=On.CONDUCTOR)

    def build(self, run: StepContext[CreateParams]) -> None:
        """Build the guest. A guest that is built already is success. A final failure leaves nothing on the host."""
        instance = run.instance
        fetch = image_transfer.source(instance.image_id, run.params.image_ticket)
        try:
            run.hypervisor.spawn(instance.as_guest(), fetch)
        except VirtError as error:
            if not error.retryable or run.step.attempts >= MAX_TRIES:
                with suppress(VirtError):
                    run.hypervisor.destroy(instance.uuid)
            raise

    def next_step(self, done: str, run: StepContext[CreateParams]) -> StepSpec | None:
        """Return `build` after `reschedule`: it runs on the new host."""
        if run.runs(self.reschedule):
            run.instance.refresh_from_db()
            return self.steps[0]
        return None

    def complete(self, run: StepContext[CreateParams], power_state: PowerState | None) -> None:
        """Finish the move and record the launch time."""
        also: dict[str, Any] = {"launched_at": timezone.now(), "fault": None}
        state.finish(run.instance, MOVE, power_state, **also)

    def after_failure(self, run: StepContext[CreateParams], error: BaseException) -> StepSpec | None:
        """Return `reschedule`, unless the image is unusable or MAX_ATTEMPTS hosts or nodes were tried."""
        if not run.runs(self.build) or isinstance(error, ImageUnusable):
            return None
        tried = [*dict.fromkeys([*run.params.tried, inventory.failure_scope(run.instance)])]
        why = str(error) or type(error).__name__
        journal.change_params(run.action, CreateParams, lambda params: replace(params, tried=tried, why=why))
        return self.elsewhere if len(tried) < settings.MAX_ATTEMPTS else None

    def reschedule(self, run: StepContext[CreateParams]) -> None:
        """Move the claim to another host of this cell. Raises NoValidHost.

        When no other host has room, a server whose host drains, and did not fail, waits for that host.
        """
        instance, tried, left = run.instance, run.params.tried, run.params.drained_host
        if instance.host and {instance.host, instance.node}.isdisjoint((*tried, left)):
            return  # an earlier try of this step has moved the claim
        room = instance.node

        def look() -> tuple[select.Requirements, list[select.HostState]]:
            asked = requirements.of_instance(instance, run.params.wanted)
            asked = replace(asked, service_version=versions.needed_by_host(self.steps))
            return asked, select.read_hosts(wanted=asked)

        def take(host: select.HostState) -> None:
            claims.release(instance.uuid, room)
            where = {"host": host.host, "node": host.node.hypervisor_hostname, "availability_zone": host.zone}
            state.during(instance, MOVE, **where)

        try:
            found = select.claim_best(look, frozenset([*tried, left]), take, run.fenced)
        except NoValidHost:
            if instance.host != left or left in tried:
                raise
            run.note(f"waits for {left}, which drains: no other host of the cell can take it")
        else:
            why = f"{', '.join(tried)} failed" if tried else f"{left} began to drain"
            where = found.node.hypervisor_hostname if found.node.is_whole else found.host
            run.note(f"moved to {where} after {why}")

    def abandon(self, run: StepContext[CreateParams], error: BaseException, power_state: PowerState | None) -> None:
        """Set the server to ERROR, with Nova's message when the hosts ran out, and release its allocation.

        The host stays on record: a delete looks there for what may be left of the guest.
        """
        if run.params.tried and not isinstance(error, ImageUnusable):
            text = (
                f"Exceeded maximum number of retries. Exhausted all hosts available for retrying build "
                f"failures for instance {run.instance.uuid}. Last: {run.params.why or error}"
            )
            error = NoValidHost(text)
        super().abandon(run, error, power_state)
        claims.release(run.instance.uuid)
