"""python -m tests.simulation.mutants [NAME ...] [--seeds 1-1000] [--jobs 2]: mutation tests of the simulation.

Each mutant removes one safeguard by changing the source text of one function. Then seeds run until one fails.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One function without one safeguard. `where`: module:function, or module:Class.method."""

    name: str
    where: str
    old: str
    new: str

    def put_in(self) -> Callable[[], None]:
        """Change the function and return the undo function. Raises LookupError when the text is not there."""
        module_name, _, path = self.where.partition(":")
        module = importlib.import_module(module_name)
        *owners, name = path.split(".")
        owner = module
        for one in owners:
            owner = getattr(owner, one)
        real = inspect.getattr_static(owner, name)
        inner = real.__func__ if isinstance(real, (classmethod, staticmethod)) else real
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(inner)))
        if self.old not in source:
            raise LookupError(f"{self.name}: {self.where} has no {self.old!r} any more")
        scope = vars(module)
        kept = scope.get(name)
        future = "from __future__ import annotations\n"
        exec(compile(future + source.replace(self.old, self.new), f"<{self.name}>", "exec"), scope)
        changed = scope.pop(name)
        if kept is not None:
            scope[name] = kept
        changed = type(real)(changed) if isinstance(real, (classmethod, staticmethod)) else changed
        setattr(owner, name, changed)
        return lambda: setattr(owner, name, real)


MUTANTS = (
    Mutant("closing asks for no token", "compute.operations.journal:_mine", ", token=step.token", ""),
    Mutant(
        "what a step writes itself is not fenced", "compute.operations.journal:fenced",
        "if not list(_mine(step)", "if False and not list(_mine(step)",
    ),
    Mutant(
        "no look at the claim before an effect", "compute.operations.context:StepContext._must_be_ours",
        "asked_at = time.monotonic()", "return",
    ),
    Mutant(
        "recovery takes a step whoever has it", "compute.operations.recovery:_recover_step", ", token=step.token", ""
    ),
    Mutant(
        "a host takes its own running step for a stray", "compute.operations.recovery:recover",
        "s.incarnation != incarnation or s.pk not in running_here", "True",
    ),
    Mutant(
        "recovery of a superseded process", "compute.operations.recovery:recover",
        "if journal.newer_incarnation(worker, incarnation).exists():", "if False:",
    ),
    Mutant(
        "conductors that live are taken for dead", "compute.operations.recovery:recover_dead_conductors",
        "living = [*_names(conductors.alive()), me]", "living = [me]",
    ),
    Mutant(
        "two steps of one server at a time", "compute.operations.journal:claim",
        "if Step.objects.filter(server_id=step.server_id, state=RUNNING).exists():", "if False:",
    ),
    Mutant(
        "a superseded process claims", "compute.operations.journal:claim",
        "~Exists(newer_incarnation(worker, incarnation))", "~Q(pk__in=[])",
    ),
    Mutant(
        "a superseded process goes on", "tasks.heartbeat:beat", "raise Superseded(me.name)",
        "return _request(Service.objects.get(binary=me.binary, host=me.host))",
    ),
    Mutant("tries do not begin from rows", "compute.operations.runner:_until_written", "run.reload()", "pass"),
    Mutant(
        "a fault is kept in memory over a rollback", "compute.operations.journal:remember_fault",
        "InstanceAction.objects.filter(pk=action.pk, fault__isnull=True).update(fault=fault)",
        "action.fault or InstanceAction.objects.filter(pk=action.pk).update(fault=fault); action.fault = fault",
    ),
    Mutant("a lost lease is not noticed", "compute.builds.leases:renew", "if not mine.update", "if mine.update"),
    Mutant("a lease that lives is taken", "compute.builds.leases:take", "BuildRequest.is_free(), ", ""),
    Mutant(
        "room is given back twice", "compute.placement.claims:release",
        "if Allocation.objects.filter(pk=allocation.pk).delete()[0]:",
        "if [Allocation.objects.filter(pk=allocation.pk).delete()]:",
    ),
    Mutant(
        "room is taken twice", "compute.placement.claims:claim",
        "held = here.values_list", "held = None and here.values_list",
    ),
    Mutant("states are set, not compared", "compute.state:_swap", "filter(expect, pk", "filter(pk"),
    Mutant("nothing is sent again", "compute.operations.recovery:relay", "dispatch.send(", "list("),
    Mutant(
        "a resize is not counted back", "compute.migration.cold:ColdMove.release_claim",
        "update_quota(run, without=run.action.pk)", "pass",
    ),
    Mutant(
        "a reboot does not ask whether it was done", "compute.actions.reboot:Reboot.reboot",
        "if driver.rebooted(guest.uuid, mark):", "if False:",
    ),
    Mutant(
        "a lost COMMIT unprepares", "compute.operations.action:ServerAction._take",
        "raise  # the COMMIT", "self.unprepare(params); raise  # the COMMIT",
    ),
    Mutant("an action may end twice", "compute.operations.journal:close_action", ", finished_at__isnull=True", ""),
    Mutant(
        "a guest that came back is ended", "compute.migration.moves:_is_expected",
        "return _lives_at(run, host) or ready.exists()", "return False",
    ),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the mutants. Return 1 when a mutant was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--seeds", default="1-1000")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="only whether each can be put in")
    asked = parser.parse_args(words)
    from tests.simulation import stage

    stage.up()
    from tests.simulation import many

    first, _, last = asked.seeds.partition("-")
    lived = 0
    chosen = [one for one in MUTANTS if not asked.names or any(name in one.name for name in asked.names)]
    for mutant in chosen:
        try:
            take_back = mutant.put_in()
        except LookupError as wrong:
            print(f"?        {wrong}")
            lived += 1
            continue
        if not asked.check:
            found = None
            for outcome in many.outcomes(range(int(first), int(last or first) + 1), asked.jobs):
                if outcome.violations:
                    found = outcome
                    break
            lived += found is None
            words_ = f"seed {found.plan.seed}: {found.violations[0]}" if found else "not found"
            print(f"{'found' if found else 'LIVES':8} {mutant.name}: {words_}", flush=True)
        take_back()
    print(f"{len(chosen)} mutants, {lived} live")
    return int(bool(lived))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.simulation.mutants", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})
    sys.exit(main(sys.argv[1:]))
