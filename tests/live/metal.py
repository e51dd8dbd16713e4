"""A host of bare metal beside a cloud's other hosts, and the real Ironic it serves, which knows the cloud as its Nova.

with metal.beside(cloud) as rig:
    uuid = rig.boot()                       a server, ACTIVE on a node of its own
    rig.ironic.power(rig.node(uuid), "power off")
    rig.becomes(uuid, "SHUTOFF")            seconds until our record says so
    rig.stays(uuid, "SHUTOFF", rounds=3)    over so many looks of the power sync
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

from cloud.identity.roles import ROLES
from cloud.processes import alive, gone
from deploy.local import envfiles, ironic, workers
from deploy.local.ironic import Ironic
from deploy.local.state import write_private
from tasks import worker_process as processes
from tests.live import books
from tests.live.cloud import Cloud, eventually
from tests.live.road import Road
from tests.live.stage import Stage

HOST, CELL_OF, FLAVOR, CLASS = "metal", "host1", "metal.gold", "baremetal.gold"
SECONDS = 60.0
TRIES = 3


class Rig:
    """One host, one Ironic, and the admin who works on both."""

    def __init__(self, cloud: Cloud, ironic: Ironic, stage: Stage, nova: ironic.Section) -> None:
        """`nova`: how Ironic sends its events to the cloud."""
        self.cloud, self.ironic, self.stage, self._nova = cloud, ironic, stage, nova
        self.call = stage.call
        self._image = stage.image()

    def order(self, name: str = "m", **more: Any) -> str:
        """Ask for a machine; the server's id."""
        return self.stage.order(self._image, name=name, flavorRef=FLAVOR, **more)

    def boot(self, name: str = "m", **more: Any) -> str:
        """A server, ACTIVE on a machine."""
        uuid = self.order(name, **more)
        self.stage.wait(uuid, "ACTIVE", SECONDS)
        return uuid

    def node(self, uuid: str) -> str:
        """The machine it is on, as our API says."""
        return str(self.stage.show(uuid)["OS-EXT-SRV-ATTR:hypervisor_hostname"])

    def power(self, uuid: str) -> str:
        """Of its machine, as Ironic says."""
        return str(self.ironic.node(self.node(uuid))["power_state"])

    def believe(self, uuid: str, truth: str) -> None:
        """Whose word counts for a server, when the power sync finds a difference."""
        answer = self.call("POST", f"/servers/{uuid}/metadata", {"metadata": {"power_truth": truth}})
        assert answer.status_code == 200, answer.text

    def becomes(self, uuid: str, status: str, seconds: float = SECONDS) -> float:
        """How many seconds it takes until the record says so, and nothing goes on."""
        began = time.monotonic()
        self.stage.wait(uuid, status, seconds)
        return time.monotonic() - began

    def stays(self, uuid: str, status: str, rounds: int = 3) -> None:
        """AssertionError when it is anything else over so many looks of the power sync."""
        before = self._looks()

        def is_over() -> bool:
            shown = self.stage.show(uuid)
            assert (shown["status"], shown["OS-EXT-STS:task_state"]) == (status, None)
            return self._looks() >= before + rounds + 1  # the first may have begun before

        eventually(f"{rounds} looks of the power sync", is_over, SECONDS, 0.2)

    @contextmanager
    def deferred_events(self) -> Iterator[threading.Event]:
        """Ironic's events wait on their way while what is yielded is not set. Afterwards Ironic sends none."""
        gate = threading.Event()
        gate.set()
        path = "/compute/v2.1"
        with Road(self.cloud.url, f"POST {path}/os-server-external-events", gate=gate) as road:
            self.ironic.restart(nova={**self._nova, "endpoint_override": road.url + path, "timeout": 60})
            try:
                yield gate
            finally:
                gate.set()
                self.ironic.restart()

    def actions(self, uuid: str) -> list[dict[str, Any]]:
        """What was done with it, newest first, each with its events."""
        path = f"/servers/{uuid}/os-instance-actions"
        listed = self.call("GET", path).json()["instanceActions"]
        return [self.call("GET", f"{path}/{one['request_id']}").json()["instanceAction"] for one in listed]

    def act(self, uuid: str, body: dict[str, Any], status: str) -> None:
        """An action of ours, carried out."""
        assert self.stage.ask(uuid, body) == 202
        self.stage.wait(uuid, status, SECONDS)

    def delete(self, *uuids: str) -> None:
        """Servers, until they are gone."""
        for uuid in uuids:
            assert self.call("DELETE", f"/servers/{uuid}").status_code == 204
        for uuid in uuids:
            self.stage.wait(uuid, "DELETED", SECONDS)

    # -- its worker

    def start(self) -> None:
        """Its worker, up. The command may lose patience on a busy machine: the beat counts, and it is tried again."""
        said = ""
        for _ in range(TRIES):
            started = time.time()
            try:
                self.cloud.manage("host", "start", HOST, seconds=180)
            except AssertionError as refused:
                said = str(refused)
            row = f"SELECT 1 FROM compute_service WHERE host = '{HOST}' AND last_seen_up > '{_utc(started)}'"
            with suppress(AssertionError):
                eventually("its worker beats", partial(self.cloud.ask, "cell1", row), SECONDS)
                return
        raise AssertionError(f"the worker of {HOST} does not start: {said}")

    def stop(self) -> None:
        """Its worker, gracefully; not running is success."""
        pid = self._process.daemon.pid()
        if pid:
            os.kill(pid, signal.SIGTERM)
            assert gone([pid], SECONDS)

    def kill(self) -> None:
        """Its worker, at once."""
        pid = self._process.daemon.pid()
        assert pid
        os.kill(pid, signal.SIGKILL)
        assert gone([pid], SECONDS)

    @property
    def is_up(self) -> bool:
        """Whether its worker runs."""
        pid = self._process.daemon.pid()
        return pid is not None and alive(pid)

    @property
    def _process(self) -> processes.WorkerNode:
        return workers.process(self.cloud.state, workers.LocalWorker(HOST, "host"))

    def _looks(self) -> int:
        return sum("associated=True" in line for line in self.ironic.asked())


@contextmanager
def beside(cloud: Cloud, nodes: int = 3) -> Iterator[Rig]:
    """Nothing of it is left in the cloud."""
    stage = Stage(cloud)
    nova = _login(cloud, stage)
    with ironic.server(nova=nova) as bare_metal:
        bare_metal.enroll(nodes, resource_class=CLASS)
        rig = Rig(cloud, bare_metal, stage, nova)
        _write_env_file(cloud, bare_metal)
        _make_flavor(stage)
        try:
            rig.start()
            cloud.manage("discover_hosts")
            yield rig
        finally:
            if not rig.is_up:  # a test that failed may have left it so, and the others' cloud is to be in order
                rig.start()
            rig.delete(*(row.uuid for row in books.rows(cloud) if row.host == HOST))
            rig.stop()
            service = stage.service(HOST)["id"]
            assert stage.call("DELETE", f"/os-services/{service}").status_code == 204
            assert stage.call("DELETE", f"/flavors/{FLAVOR}").status_code == 202


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _login(cloud: Cloud, stage: Stage) -> dict[str, object]:
    """Ironic has a user of its own, whose role is `service`, as anywhere."""
    admin = cloud.sdk(admin=True)
    name, password, project = f"ironic-{uuid4().hex[:8]}", uuid4().hex, admin.current_project_id
    user = admin.identity.create_user(name=name, password=password, domain_id="default")
    admin.identity.assign_project_role_to_user(project, user.id, ROLES["service"].id)
    return ironic.tells(
        f"{cloud.url}/compute/v2.1", auth_type="password", auth_url=f"{cloud.url}/identity/v3", username=name,
        password=password, user_domain_id="default", project_id=project,
    )  # fmt: skip


def _write_env_file(cloud: Cloud, bare_metal: Ironic) -> None:
    """As that of a host of the cell, with another driver."""
    state = cloud.state
    values = envfiles.read(envfiles.node_file(state, CELL_OF)) | {
        "STILLWATER_HOST": HOST, "STILLWATER_DRIVER": "ironic", "STILLWATER_IRONIC_URL": bare_metal.url,
        "STILLWATER_HOST_STATE": str(state.path("hosts", HOST, "state")),
        "STILLWATER_SYNC_POWER_STATE_INTERVAL": "0.5",
    }  # fmt: skip
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in sorted(values.items()))
    write_private(envfiles.node_file(state, HOST), "".join(lines))


def _make_flavor(stage: Stage) -> None:
    flavor = {"id": FLAVOR, "name": FLAVOR, "vcpus": 4, "ram": 8192, "disk": 10}
    assert stage.call("POST", "/flavors", {"flavor": flavor}).status_code == 200
    specs = {"resources:CUSTOM_BAREMETAL_GOLD": "1", "resources:VCPU": "0", "resources:MEMORY_MB": "0"}
    assert stage.call("POST", f"/flavors/{FLAVOR}/os-extra_specs", {"extra_specs": specs}).status_code == 200
