"""python -m tests.machines [--only STEPS]: from nothing to a cloud of three machines, and what it withstands.

Each machine is a set of namespaces with its own network, file system, processes, sshd and libvirtd. The playbooks of
deploy/ansible set it up from a wheel that is built here. Needs root, and what deploy/bootstrap.sh --tests installs.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from deploy.local.state import ROOT
from tests.live.cloud import eventually
from tests.machines.load import Load, Users
from tests.machines.machine import Network
from tests.machines.site import Site, wheel, wheelhouse
from tests.upgrade import trees

LOSS, CUT_SECONDS, OPERATIONS = 0.05, 30.0, 60


class Run:
    """The steps in their order; each prints a line."""

    def __init__(self, network: Network, only: list[str]) -> None:
        self.network, self.only, self.rows, self.good = network, only, list[str](), True
        self.wheels = wheelhouse()
        (network.folder / "dist").mkdir()
        self.site = Site(network, wheel(ROOT, network.folder / "dist"))
        self.users: Users

    def step(self, title: str, act: Callable[[], str]) -> None:
        """Do one step, and note what came of it."""
        if self.only and act.__name__ not in (*self.only, "set_up", "boot"):
            return
        began = time.monotonic()
        try:
            said = act()
        except (AssertionError, TimeoutError) as wrong:
            said, self.good = f"FAILED: {wrong}", False
        self.rows.append(f"{title:<58} {time.monotonic() - began:>6.0f} s  {said}")
        print(self.rows[-1], flush=True)

    def all(self) -> None:
        """Everything of point 5 of the issue."""
        for name in ("control", "host1", "host2"):
            self.network.add(name, self.wheels)
        self.step("nothing -> cloud: ansible-playbook site.yml", self.set_up)
        if not self.good:
            return
        self.step("the same again", self.again)
        self.step("secrets: in no output, hosts have their cell's only", self.secrets)
        self.step("guests boot on both hosts", self.boot)
        self.step("host drain --migrate host1, undrain", self.drain)
        self.step(f"{LOSS:.0%} of packets dropped between all machines", self.lossy)
        self.step(f"{CUT_SECONDS:.0f} s without any packet between control and host1", self.cut)
        self.step("upgrade.yml under load", self.upgrade)
        self.step("one more host: a line, and site.yml --limit", self.add)
        self.step("remove_host.yml -e host=host1", self.remove)

    def set_up(self) -> str:
        """From bare machines."""
        done = self.site.play("site.yml")
        self.users = Users(self.site)
        return f"{sum(one['changed'] for one in done.values())} changes on {len(done)} machines"

    def again(self) -> str:
        """Nothing changes."""
        changed = {name: one["changed"] for name, one in self.site.play("site.yml").items()}
        assert not any(changed.values()), f"changed: {changed}"
        return "no change"

    def secrets(self) -> str:
        """Look for each secret where it must not be."""
        said = self.site.log.read_text()
        names = sorted(path.name for path in (self.network.folder / "secrets").iterdir())
        shown = [name for name in names if self.site.secret(name) in said]
        assert not shown, f"in the output of Ansible: {shown}"
        for host in self.site.hosts:
            kept = "\n".join(path.read_text() for path in (host.root / "etc/stillwater").rglob("*") if path.is_file())
            assert self.site.secret("cell1-password") in kept
            found = [name for name in names if name != "cell1-password" and self.site.secret(name) in kept]
            assert not found, f"{host.name} has {found}"
            loose = [str(path) for path in (host.root / "etc/stillwater").rglob("*.env") if path.stat().st_mode & 0o077]
            assert not loose, f"readable for others: {loose}"
        return f"{len(names)} secrets"

    def boot(self) -> str:
        """Two guests, which the scheduler spreads."""
        self.guests = [self.users.boot(f"guest{number}") for number in range(2)]
        on = {self.users.host_of(one) for one in self.guests}
        assert on == {"host1", "host2"}, on
        return "2 ACTIVE"

    def drain(self) -> str:
        """The guests of host1 go on at host2."""
        moved = [one for one in self.guests if self.users.host_of(one) == "host1"]
        before = {one.id: self.users.ticks(one) for one in moved}
        self._manage("host drain host1 --migrate --timeout 600")
        assert {self.users.host_of(one) for one in self.guests} == {"host2"}
        for one in moved:
            eventually(f"{one.name} counts on", lambda one=one: self.users.ticks(one) > before[one.id])
        self._manage("host undrain host1")
        return f"{len(moved)} moved live, the count on its console went on"

    def lossy(self) -> str:
        """Under load."""
        load = Load(self.users, "loss")
        machines = list(self.network.machines.values())
        with load.at_work(), ExitStack() as stack:
            for number, one in enumerate(machines):
                for other in machines[number + 1 :]:
                    stack.enter_context(one.dropping(other, LOSS))
            load.wait_for(OPERATIONS)
        return self._judged(load)

    def cut(self) -> str:
        """Under load."""
        load = Load(self.users, "cut")
        with load.at_work():
            load.wait_for(OPERATIONS // 3)
            with self.site.control.dropping(self.network.machines["host1"]):
                time.sleep(CUT_SECONDS)
            load.wait_for(OPERATIONS // 3)
        return self._judged(load)

    def upgrade(self) -> str:
        """To a version that knows one step more."""
        folder = self.network.folder
        (folder / "newer").mkdir()
        (folder / "newer-dist").mkdir()
        self.site.wheel = wheel(trees.newer(folder / "newer"), folder / "newer-dist")
        load = Load(self.users, "upgrade")
        with load.at_work():
            load.wait_for(OPERATIONS // 3)
            self.site.play("upgrade.yml")
            load.wait_for(OPERATIONS // 3)
        versions = self._manage("service_list")
        assert versions.count(f" {trees.NEWEST} ") == 4, versions
        return self._judged(load)

    def add(self) -> str:
        """A third host takes a server."""
        self.network.add("host3", self.wheels)
        self.site.play("site.yml", "--limit", "host3")
        server = self.users.admin.compute.create_server(
            name="on-host3", image_id=self.users.image, flavor_id="42", networks="none", host="host3"
        )
        self.users.admin.compute.wait_for_server(server, wait=180)
        assert self.users.host_of(server) == "host3"
        return "a server is ACTIVE there"

    def remove(self) -> str:
        """What ran there goes on elsewhere."""
        self.site.play("remove_host.yml", "-e", "host=host1")
        for listed in (self._manage("list_hosts"), self._manage("service_list")):
            assert "host1" not in listed, listed
        for one in self.guests:
            assert self.users.demo.compute.get_server(one.id).status == "ACTIVE"
            assert self.users.host_of(one) != "host1"
        machine = self.network.machines.pop("host1")
        assert not self.users.books.guests(machine)
        machine.end()
        return "its servers are ACTIVE elsewhere"

    def _manage(self, words: str) -> str:
        return self.site.control.run(f"cd / && runuser -u stillwater -- stillwater-manage {words}", seconds=700)

    def _judged(self, load: Load) -> str:
        for finding in load.findings:
            print(f"  {finding.kind.upper()} {finding.server}: {finding.words}", flush=True)
        assert not load.findings, str(load)
        assert not load.failed, f"{load} {dict(load.failed)}"
        return str(load)


def main() -> int:
    """0 when every step is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--only", default="", help="for example drain,cut: functions of this file")
    parser.add_argument("--keep", action="store_true", help="after a failure wait before all machines end")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    network = Network()
    try:
        run = Run(network, options.only.split(",") if options.only else [])
        run.all()
        if options.keep and not run.good:
            print(f"{network.folder} is kept until SIGTERM", flush=True)
            signal.pause()
    finally:
        network.end()
    print("\n" + "\n".join(run.rows))
    return 0 if run.good else 1


if __name__ == "__main__":
    sys.exit(main())
