"""A real Ironic of our own for as long as somebody needs one: own folder, one port, SQLite, machines that are fake.

    with ironic.server() as bare_metal:               # a few seconds
        nodes = bare_metal.enroll(3)                  # node ids, available
        bare_metal.power(nodes[0], "power off")       # as an operator does it, behind our cloud's back
        bare_metal.maintain(nodes[1], "fan broken")
        bare_metal.restart(nova=ironic.tells(url))    # from now on it sends its power-update events there

Machines that Ironic only believes to know are of `driver="machines"` (see ironic_machines.py):

        node, = bare_metal.enroll(driver="machines")
        bare_metal.machine(node, obeys=None)          # its guest does not hear a soft power off
        bare_metal.machine(node, power="power on")    # somebody pressed the button; Ironic sees it within 2 s

By hand, until Ctrl-C: `python -m deploy.local.ironic --nodes 3 --resource-class baremetal.gold`; with OS_AUTH_URL,
OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME set it sends its power-update events to that cloud as that user.

`STILLWATER_IRONIC_URL` is `bare_metal.url`; there is no login. API and conductor are one process and its child:
`rpc_transport = none`, because with json-rpc on a port of one's own Ironic 39.0.0 keeps locks of a past life for ever.
Installed by `deploy/bootstrap.sh --tests`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from configparser import RawConfigParser
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from deploy.local.ports import any_free
from deploy.local.progress import Failed, wait_for
from deploy.local.state import ROOT, require

START_SECONDS, STOP_SECONDS, NODE_SECONDS, HTTP_SECONDS = 150, 60, 60, 30
USER = "stillwater"
ADVICE = "Run deploy/bootstrap.sh --tests, which installs it."
MACHINE = {"cpus": 4, "memory_mb": 8192, "local_gb": 100, "cpu_arch": "x86_64"}
Section = Mapping[str, object]
ENTRY_POINTS = """\
[ironic.hardware.types]
machines = stillwater_machines:Machines
[ironic.hardware.interfaces.power]
machine = stillwater_machines:MachinePower
[ironic.hardware.interfaces.deploy]
machine = stillwater_machines:MachineDeploy
"""
REQUEST = re.compile(r" ironic\.api \[[^\]]*\] \S+ - (\w+ \S+ - \d+)")  # in its log
SILENT = {"send_power_notifications": "false"}
FAKE, NONE = (
    ("boot", "deploy", "management", "power", "rescue"),
    ("bios", "console", "firmware", "inspect", "raid", "vendor"),
)


def tells(url: str, **login: object) -> Section:
    """The `[nova]` section that sends power-update events to the Compute API at `url`; e.g. auth_type="http_basic"."""
    return {"auth_type": "none", "endpoint_override": url, "timeout": 10, **login}


@contextmanager
def server(**sections: Section) -> Iterator[Ironic]:
    """One that runs. `sections` of ironic.conf are laid over the usual ones: `conductor={…}, nova=tells(url)`."""
    ironic = Ironic(**sections)
    try:
        ironic.start()
        yield ironic
    finally:
        ironic.end()


class Ironic:
    """One service, its database and its nodes."""

    def __init__(self, **sections: Section) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sw-ironic-", dir="/tmp"))
        self._port = any_free()
        self._sections, self._password = sections, ""
        self._process: subprocess.Popen[bytes] | None = None
        self._http = requests.Session()
        self._http.headers["X-OpenStack-Ironic-API-Version"] = "latest"
        self._http.trust_env = False  # loopback: no proxy

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self._port}"

    # -- the process

    def start(self) -> None:
        """Start it, and return when it has a conductor that takes nodes."""
        self._configure()
        self._plug_in_machines()
        if not (self.folder / "ironic.sqlite").exists():
            self._run_once("ironic-dbsync", "create_schema")
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command("ironic"), cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        wait_for(lambda: self._answers() or not self.is_running(), START_SECONDS)
        if not self._answers():
            raise Failed(f"Ironic did not start: {self.log()[-2000:]}")

    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End it: by SIGTERM what it does ends first, by SIGKILL it is away at once. Its nodes stay on record."""
        if self._process is None:
            return
        group = self._process.pid  # of its own session: the worker too
        if sig == signal.SIGKILL:
            with suppress(ProcessLookupError):
                os.killpg(group, sig)
        else:
            self._process.send_signal(sig)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def restart(self, sig: signal.Signals = signal.SIGKILL, password: str = "", **sections: Section) -> None:
        """Anew with other sections; those not named are as usual. Nodes stay. `password`: USER has to log in."""
        self.stop(sig)
        self._sections, self._password = sections, password
        self._http.auth = (USER, password) if password else None
        self.start()

    def end(self) -> None:
        """Nothing of it is left."""
        self.stop(signal.SIGKILL)
        self._http.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """What it has written, all of its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def asked(self) -> list[str]:
        """Every request its API had since it was made, oldest first: "GET /v1/nodes/… - 200"."""
        return REQUEST.findall(self.log())

    # -- its nodes

    def enroll(self, count: int = 1, **columns: object) -> list[str]:
        """So many more nodes, available; their ids. `columns` of a node: name, resource_class, extra …"""
        wanted = {"driver": "fake-hardware", "resource_class": "baremetal", "properties": MACHINE, **columns}
        nodes = [str(self.call("POST", "/v1/nodes", wanted)["uuid"]) for _ in range(count)]
        for target, state in (("manage", "manageable"), ("provide", "available")):
            for node in nodes:
                self.call("PUT", f"/v1/nodes/{node}/states/provision", {"target": target})
            for node in nodes:
                self.wait(node, provision_state=state, reservation=None)
        return nodes

    def node(self, node: str) -> dict[str, Any]:
        """Its record."""
        return self.call("GET", f"/v1/nodes/{node}")

    def node_of(self, server: str) -> dict[str, Any] | None:
        """The node that a server of ours is on."""
        found = self.call("GET", f"/v1/nodes/detail?instance_uuid={server}")["nodes"]
        return found[0] if found else None

    def change(self, node: str, **columns: object) -> None:
        """Set columns of a node; None takes one away. `extra={"a": 1}` replaces all of it."""
        patch = [
            {"op": "remove", "path": f"/{name}"} if value is None else {"op": "add", "path": f"/{name}", "value": value}
            for name, value in columns.items()
        ]
        self.call("PATCH", f"/v1/nodes/{node}", patch)

    def power(self, node: str, target: str, seconds: int | None = None) -> None:
        """ "power on", "power off", "soft power off", "rebooting" by Ironic's API; done when this returns."""
        self.call(
            "PUT", f"/v1/nodes/{node}/states/power", {"target": target, **({"timeout": seconds} if seconds else {})}
        )
        self.wait(node, target_power_state=None)

    def maintain(self, node: str, reason: str = "") -> None:
        """Somebody works on it: Ironic does nothing with it."""
        self.call("PUT", f"/v1/nodes/{node}/maintenance", {"reason": reason})

    def maintained(self, node: str) -> None:
        """That is over."""
        self.call("DELETE", f"/v1/nodes/{node}/maintenance")

    def machine(self, node: str, **facts: object) -> dict[str, Any]:
        """What a machine of `driver="machines"` really does, after `facts` of it were changed."""
        file = self._machines / node
        known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if facts:
            known |= facts
            new = file.with_suffix(".ours")
            new.write_text(json.dumps(known))
            new.replace(file)
        if known.get("off_at") and time.time() >= known["off_at"]:  # nobody has looked since
            known["power"] = "power off"
        return known

    def clear(self) -> None:
        """No node is left, whatever was on it."""
        for node in self.call("GET", "/v1/nodes?fields=uuid")["nodes"]:
            self.maintain(node["uuid"], "it goes")
            self.change(node["uuid"], instance_uuid=None)
            self.call("DELETE", f"/v1/nodes/{node['uuid']}")

    def wait(self, node: str, **columns: object) -> dict[str, Any]:
        """Until its columns are so; its record. Raises Failed."""
        found: dict[str, Any] = {}

        def is_so() -> bool:
            found.update(self.node(node))
            return all(found[name] == value for name, value in columns.items())

        if not wait_for(is_so, NODE_SECONDS):
            raise Failed(
                f"node {node} is not {columns}: { ({name: found[name] for name in columns}) }, {found['last_error']}"
            )
        return found

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Its API; JSON. A node that is locked is asked again. Raises Failed."""
        answers: list[requests.Response] = []

        def is_heard() -> bool:
            answers.append(self._http.request(method, self.url + path, json=body, timeout=HTTP_SECONDS))
            return not (answers[-1].status_code == 409 and "locked" in answers[-1].text)

        wait_for(is_heard, NODE_SECONDS)
        answer = answers[-1]
        if not answer.ok:
            raise Failed(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    # -- how it is made

    @property
    def _log(self) -> Path:
        return self.folder / "ironic.log"

    @property
    def _machines(self) -> Path:
        return self.folder / "machines"

    def _plug_in_machines(self) -> None:
        """A package of two files: Ironic finds hardware types by what packages declare."""
        plugins = self.folder / "plugins"
        about = plugins / "stillwater_machines-1.dist-info"
        for folder in (self._machines, about):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("ironic_machines.py"), plugins / "stillwater_machines.py")
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stillwater-machines\nVersion: 1\n")
        (about / "entry_points.txt").write_text(ENTRY_POINTS)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.folder / "plugins"),
            "STILLWATER_MACHINES": str(self._machines),
        }

    def _answers(self) -> bool:
        """A request before its conductor is there would be refused: there is no host for the hardware type."""
        with suppress(requests.RequestException, Failed):
            return bool(self.call("GET", "/v1/drivers")["drivers"])
        return False

    def _command(self, program: str) -> list[str]:
        return [require(str(home() / "bin" / program), ADVICE), "--config-file", str(self.folder / "ironic.conf")]

    def _run_once(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [*self._command(program), *words], cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=START_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"{program} failed: {done.stderr[-2000:]}")

    def _configure(self) -> None:
        conf = RawConfigParser(default_section="")
        usual = self._usual()
        if self._password:
            file = self.folder / "htpasswd"
            file.write_text(f"{USER}:{_hashed(self._password)}\n")
            login = {"auth_strategy": "http_basic", "http_basic_auth_user_file": str(file)}
            usual["DEFAULT"] = {**usual["DEFAULT"], **login}
        for name in usual | self._sections:
            section = {**usual.get(name, {}), **self._sections.get(name, {})}
            conf[name] = {option: str(value) for option, value in section.items()}
        with (self.folder / "ironic.conf").open("w") as out:
            conf.write(out)

    def _usual(self) -> dict[str, Section]:
        enabled = {f"enabled_{name}_interfaces": "fake" for name in FAKE}
        enabled |= {f"enabled_{name}_interfaces": f"no-{name}" for name in NONE}
        enabled |= {"enabled_network_interfaces": "noop", "enabled_storage_interfaces": "noop"}
        enabled |= {"enabled_power_interfaces": "fake,machine", "enabled_deploy_interfaces": "fake,machine"}
        return {
            "DEFAULT": {
                "auth_strategy": "noauth", "rpc_transport": "none", "host": "bare-metal", "my_ip": "127.0.0.1",
                "enabled_hardware_types": "fake-hardware,machines", "default_rescue_interface": "fake", **enabled,
            },
            "api": {"host_ip": "127.0.0.1", "port": self._port},
            "database": {"connection": f"sqlite:///{self.folder}/ironic.sqlite", "sqlite_synchronous": "false"},
            "conductor": {"automated_clean": "false", "sync_power_state_interval": 2, "power_state_sync_max_retries": 1,
                          "power_failure_recovery_interval": 2,
                          "force_power_state_during_sync": "false"},
            "nova": {} if "nova" in self._sections else SILENT,
        }  # fmt: skip


def main() -> None:
    """A trial's Ironic in the foreground."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.ironic", description="Run an Ironic until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=3, help="Fake machines it has; default: 3.")
    parser.add_argument("--resource-class", default="baremetal.gold", help="Of its machines; default: baremetal.gold.")
    asked = parser.parse_args()
    login = _login()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), server(**({"nova": login} if login else {})) as bare_metal:
        print(f"Ironic runs: STILLWATER_IRONIC_URL={bare_metal.url}", flush=True)
        print(f"its log:     {bare_metal.folder / 'ironic.log'}", flush=True)
        for node in bare_metal.enroll(asked.nodes, driver="machines", resource_class=asked.resource_class):
            print(f"node         {node}, {asked.resource_class}, available", flush=True)
        print(f"events:      {'to ' + str(login['endpoint_override']) if login else 'none are sent'}", flush=True)
        print("Ctrl-C ends it.", flush=True)
        signal.pause()


def _login() -> dict[str, object]:
    """Of the user Ironic sends its events as, from the variables every OpenStack client reads; {}: it sends none."""
    names = ("auth_url", "username", "password", "project_name")
    named = {name: os.environ.get(f"OS_{name.upper()}", "") for name in names}
    if not all(named.values()):
        return {}
    compute = named["auth_url"].removesuffix("/").removesuffix("/identity/v3") + "/compute/v2.1"
    return dict(tells(compute, auth_type="password", user_domain_id="default", project_domain_id="default", **named))


def _hashed(password: str) -> str:
    """As Ironic wants it; it has what that takes."""
    code = "import bcrypt, sys; print(bcrypt.hashpw(sys.stdin.buffer.read(), bcrypt.gensalt(4)).decode())"
    python = require(str(home() / "bin/python"), ADVICE)
    done = subprocess.run([python, "-c", code], input=password, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def home() -> Path:
    """Where deploy/bootstrap.sh installs it: one for all checkouts."""
    pinned = (ROOT / "deploy/ironic-requirements.txt").read_text().splitlines()
    version = next(line.removeprefix("ironic==") for line in pinned if line.startswith("ironic=="))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "stillwater" / f"ironic-{version}"


if __name__ == "__main__":
    main()
