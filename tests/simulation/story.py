"""One simulation run: faults first, then everything heals and all work has to end."""

from __future__ import annotations

import faulthandler
import gc
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.simulation import fence, ledger, machines, patches
from tests.simulation.client import Clients
from tests.simulation.cloud import Cloud
from tests.simulation.harm import Weather
from tests.simulation.kernel import EPOCH, Actor, Simulation, Stuck
from tests.simulation.plan import Harm, Operation, Plan

HANGS = 200  # real seconds after which a run is aborted: the simulator itself hangs
BEGIN = 4.0  # seconds until all processes are up
BOUND = 1800.0  # seconds from healing to the last end
LOOKS = {True: (50.0, 15.0), False: (12.0, 7.0)}  # by Plan.patient: seconds to the first check, between two checks


@dataclass
class Outcome:
    """The result of a run."""

    plan: Plan
    violations: list[str] = field(default_factory=list)
    operations: int = 0
    accepted: int = 0
    events: int = 0
    hash: int = 0
    seconds: float = 0.0  # virtual
    trace: list[tuple[float, str, str]] = field(default_factory=list, repr=False)


def play(plan: Plan, *, verbose: bool = False) -> Outcome:
    """Run a plan to its end and check the result."""
    gc.disable()
    faulthandler.dump_traceback_later(HANGS, exit=True)
    try:
        with machines.folder() as folder:
            return _play(plan, folder, verbose=verbose)
    finally:
        faulthandler.cancel_dump_traceback_later()
        Simulation.current = None
        gc.enable()


def _play(plan: Plan, folder: Path, *, verbose: bool) -> Outcome:
    patches.seed_ids(plan.seed)
    sim = Simulation(plan.seed, switch=plan.switch, verbose=verbose)
    Simulation.current, sim.folder = sim, str(folder)
    cloud = Cloud(sim, plan, folder)
    cloud.harm = {one.kind for one in plan.harm}
    clients = Clients(cloud)
    weather = Weather(cloud, clients, plan)
    outcome = Outcome(plan)
    crashes: list[str] = []
    sim.on_crash = lambda actor, error: crashes.append(_crash(actor, error))
    fence.watch(cloud)
    cloud.host_cells()
    for machine in cloud.machines.values():
        machine.shutdown_preferences()
        machine.slow = 4.0 if plan.slow else 0.0
    cloud.start()
    for one in plan.operations:
        sim.at(EPOCH + BEGIN + one.at, partial(_ask, cloud, clients, one))
    for harm in plan.harm:
        sim.at(EPOCH + BEGIN + harm.at, partial(weather.begin, harm))
    sim.spawn("director", None, partial(_direct, cloud, clients, weather, plan, outcome))
    try:
        sim.run()
    except Stuck as stuck:
        outcome.violations.append(f"stuck: {stuck}")
    outcome.violations += crashes
    outcome.operations = len(clients.asked)
    outcome.accepted = sum(one.accepted is True for one in clients.asked)
    outcome.events, outcome.hash, outcome.seconds = sim.events, sim.hash, sim.now - EPOCH
    outcome.trace = list(sim.trace)
    cloud.end()
    return outcome


def _ask(cloud: Cloud, clients: Clients, one: Operation) -> None:
    """Send a request at its time; no-op when no API process runs."""
    living = [cloud.processes[name] for name in ("api-api1", "api-api2") if cloud.processes[name].is_alive]
    if not living:
        return
    process = living[one.number % len(living)]
    work = partial(clients.ask, one.number, one.verb, one.slot, one.request_id, process, one.extra)
    cloud.sim.spawn(f"{process.name}/request-{one.number}", process, work)


def _direct(cloud: Cloud, clients: Clients, weather: Weather, plan: Plan, outcome: Outcome) -> None:
    sim = cloud.sim
    last = max([one.at for one in plan.operations] + [one.at + _lasts(one) for one in plan.harm], default=0.0)
    sim.sleep(BEGIN + last + 15)
    sim.say("now everything heals")
    weather.heal()
    healed = sim.now
    first, every = LOOKS[plan.patient]
    sim.sleep(first)
    clean = 0
    while True:
        found = [] if not ledger.is_quiet(cloud) else ledger.judge(cloud, clients.asked)
        clean = clean + 1 if ledger.is_quiet(cloud) and not found else 0
        late = sim.now - healed > BOUND
        if clean >= 2 or late:
            break
        sim.sleep(every if sim.now - healed < 180 else 4 * every)
    outcome.violations += ledger.judge(cloud, clients.asked)
    sim.is_over = True


def _lasts(harm: Harm) -> float:
    """Return how long healing waits for a fault: a backup is put in place before everything heals."""
    return harm.length if harm.kind == "restore" else 0.0


def _crash(actor: Actor, error: BaseException) -> str:
    import traceback

    where = "".join(traceback.format_exception(error)[-3:]).strip().replace("\n", " | ")
    return f"crash: {actor.name}: {error!r} at {where}"
