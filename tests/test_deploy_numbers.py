"""Each number, name and command line that stands both in the code and in a unit or manifest is the same in both."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cloud import env
from cloud.serving import conf
from deploy import validate
from deploy.kubernetes import __main__ as kubernetes
from deploy.local.__main__ import STOP_SECONDS
from deploy.local.state import StackOptions
from deploy.local.up import API_PORT
from tasks import stop_timeouts
from tasks import systemd_units as systemd
from tasks.worker_process import WorkerNode
from tests.deployment import (
    KUBERNETES,
    MANIFESTS,
    ROOT,
    SERVICES,
    SYSTEMD,
    UNITS,
    WORKLOADS,
    container,
    documents,
    every_document,
    lines,
    pod,
    pre_stop,
    variables,
)

DERIVED = {"TimeoutStopSec", "terminationGracePeriodSeconds"}
NUMBER = re.compile(r'(?:TimeoutStopSec=|_TIMEOUT=|--timeout |PeriodSeconds: |_TIMEOUT\n +value: ")(\d+)')
# Numbers that follow from nothing else.
OWN = {"TimeoutStartSec", "WatchdogSec", "RestartSec", "StartLimitIntervalSec", "periodSeconds", "timeoutSeconds"}
SOCKET, PORT = "stillwater-api.socket", urlsplit(env.VARIABLES["STILLWATER_PUBLIC_URL"].default).port
PAGE = (ROOT / "docs/graceful-shutdown.md").read_text()
METRICS = "STILLWATER_METRICS_PORT"


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from chain(value, *map(keys, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(keys, value))


def arguments(name: str) -> list[str]:
    """The command of a process, without its program, its address and its name."""
    if name.endswith(".service"):
        [line] = lines(SYSTEMD / name)["ExecStart"]
        program, *words = shlex.split(line)
    else:
        program, words = container(name)["command"][0], container(name)["args"]
    assert program.startswith(f"{stop_timeouts.INSTALLED}/.venv/bin/")
    words = [word for word in words if not word.startswith("--bind=")]
    return [re.sub(r"^(%i|\$\(STILLWATER_HOST\))@", "NAME@", word) for word in words]


# -- times


def test_every_time_is_derived_or_follows_from_nothing_else():
    said = {key for name in UNITS for key in lines(SYSTEMD / name) if re.search(r"Sec$|Timeout", key)}
    said |= {key for one in every_document() for key in keys(one) if re.search(r"Seconds|[tT]imeout", key)}
    assert said <= DERIVED | OWN
    assert said >= DERIVED


@pytest.mark.parametrize("name", [*UNITS, *WORKLOADS])
def test_each_derived_number_that_was_changed_by_hand_is_written_anew(name):
    """Changed alone: that a file says the same number twice hides none."""
    folder, fill = (KUBERNETES, kubernetes.fill) if name.endswith(".yaml") else (SYSTEMD, systemd.fill)
    text = (folder / name).read_text()
    numbers = list(NUMBER.finditer(text))
    assert len(numbers) == (0 if name == SOCKET else 2)
    for one in numbers:
        changed = f"{text[: one.start(1)]}7{text[one.end(1) :]}"
        assert stop_timeouts.filled(changed, fill, {}) == text


def test_gunicorn_and_celery_have_no_limit_that_is_shorter_than_ours():
    longest = max(kubernetes.FOR_EVER, *env.GRACEFUL_SHUTDOWN_TIMEOUTS.values())
    assert conf.graceful_timeout > longest
    for name in [*SERVICES, *WORKLOADS]:
        assert not [word for word in arguments(name) if "timeout" in word or word.startswith("-t")], name


def test_the_page_about_the_shutdown_has_these_numbers():
    own = env.GRACEFUL_SHUTDOWN_TIMEOUTS
    supervisor = {role: stop_timeouts.supervisor_seconds(role, {}) for role in own}
    for seconds in (own, supervisor):
        others = {value for role, value in seconds.items() if role != "host"}
        assert f"host {seconds['host']:.0f} s, others {others.pop():.0f} s |" in PAGE
        assert not others
    assert f"| {supervisor['api'] + pre_stop('api.yaml')} s | derived: the line of the supervisor and " \
           f"{pre_stop('api.yaml')} s |" in PAGE  # fmt: skip
    assert f"derived: the line above and {stop_timeouts.MARGIN} s |" in PAGE
    guests = env.VARIABLES[stop_timeouts.GUESTS].default
    assert f"| {guests} s, and {stop_timeouts.GUESTS_MARGIN} s to find out" in PAGE
    assert f"host's {supervisor['host']} s." in PAGE
    assert f"`make down` gives each process {STOP_SECONDS} s." in PAGE
    oldest, newest = (".".join(version.split(".")[:2]) for version in validate.VERSIONS)
    assert f"the schemas of Kubernetes {oldest} and {newest} (" in PAGE


# -- commands, ports, folders, users


def test_one_command_line_starts_a_worker_however_it_is_supervised():
    [worker] = {tuple(arguments(name)) for name in [*SERVICES, *WORKLOADS] if "api" not in name}
    multi = WorkerNode("NAME", *[Path("/tmp")] * 3).command("start")
    ours = [word for word in multi[multi.index("multi") + 2 :] if not word.startswith(("--pidfile=", "--logfile="))]
    assert sorted({*worker} - {"worker", "-n"}) == sorted(ours)


def test_one_command_line_starts_an_api_however_it_is_supervised():
    assert sorted(arguments("stillwater-api.service")) == sorted(arguments("api.yaml"))
    [configuration] = [word for word in arguments("api.yaml") if word.startswith("--config=")]
    assert configuration == f"--config=python:{conf.__name__}"


def test_the_api_has_one_port():
    api = container("api.yaml")
    [bind] = [word for word in api["args"] if word.startswith("--bind=")]
    [listen] = lines(SYSTEMD / SOCKET)["ListenStream"]
    [service] = [one for one in documents("api.yaml") if one["kind"] == "Service"]
    [template] = [one["spec"]["template"] for one in documents("api.yaml") if "template" in one.get("spec", {})]
    scraped = template["metadata"]["annotations"]["prometheus.io/port"]
    assert {int(one.rpartition(":")[2]) for one in (bind, listen, scraped)} == {PORT}
    assert {api["ports"][0]["containerPort"], service["spec"]["ports"][0]["port"]} == {PORT}
    assert {API_PORT, StackOptions.port} == {PORT}


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "api.yaml"])
def test_a_worker_has_one_port_for_its_metrics(name):
    [template] = [one["spec"]["template"] for one in documents(name) if "template" in one.get("spec", {})]
    services = [one for one in documents(name) if one["kind"] == "Service"]
    [port] = container(name)["ports"]
    found = {port["containerPort"], port.get("hostPort", port["containerPort"])}
    found |= {one["port"] for service in services for one in service["spec"]["ports"]}
    found |= {int(template["metadata"]["annotations"]["prometheus.io/port"])}
    assert found == {int(variables(name)[METRICS])}
    assert {one["targetPort"] for service in services for one in service["spec"]["ports"]} <= {port["name"]}


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".service")])
def test_a_unit_writes_where_systemd_lets_its_user(name):
    unit = lines(SYSTEMD / name)
    [state] = unit["StateDirectory"]
    for variable in {"STILLWATER_STATE", "STILLWATER_HOST_STATE"} & set(unit):
        assert unit[variable] == [f"/var/lib/{state}"]
    assert unit["WorkingDirectory"] == [stop_timeouts.INSTALLED]
    assert unit["ProtectSystem"] == ["strict"], "so that no other folder can be written"
    assert unit["User"] == ["root" if "STILLWATER_HOST_STATE" in unit else "stillwater"]
    assert unit["User"] == ["root"] or unit["Group"] == unit["User"]
    [file] = unit["EnvironmentFile"]
    assert f"`{file.replace('%i', 'NAME')}`" in PAGE or file in "/etc/stillwater/host-%i.env"


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_writes_into_what_is_mounted(name):
    mounts = {one["mountPath"] for one in container(name)["volumeMounts"]}
    folders = {variables(name)[one] for one in ("STILLWATER_STATE", "STILLWATER_HOST_STATE") if one in variables(name)}
    assert folders <= mounts
    assert "/tmp" in mounts
    assert container(name)["securityContext"]["readOnlyRootFilesystem"] is True
    assert container(name)["workingDir"] == stop_timeouts.INSTALLED
    user = container(name)["securityContext"]["runAsUser"]
    assert pod(name).get("securityContext", {"fsGroup": user}) == {"fsGroup": user}
    assert (user == 0) == ("STILLWATER_HOST_STATE" in variables(name)), "root where libvirt is"


@pytest.mark.parametrize("path", [*(SYSTEMD / name for name in UNITS), *(KUBERNETES / name for name in MANIFESTS)],
                         ids=lambda path: path.name)  # fmt: skip
def test_every_variable_has_a_value_that_is_read(path):
    if path.suffix == ".yaml":
        config = documents(path.name)[0].get("data", {}) if path.name == "config.yaml" else {}
        said = variables(path.name) if path.name in WORKLOADS else config
    else:
        said = {name: values[0] for name, values in lines(path).items() if name.startswith("STILLWATER_")}
    for name, value in said.items():
        if value and name != "STILLWATER_ENV_FILE":
            env.VARIABLES[name].read({name: value})  # it exits when the value is wrong
    for names in re.findall(r"# (STILLWATER_\w+(?:, _\w+)+)", path.read_text()):
        for short in names.split(", "):
            assert f"STILLWATER_{short.removeprefix('STILLWATER_').removeprefix('_')}" in env.VARIABLES, short


def test_the_exit_code_of_a_wrong_setting_is_the_one_that_units_do_not_repeat():
    assert {lines(SYSTEMD / name)["RestartPreventExitStatus"][0] for name in SERVICES} == {str(os.EX_CONFIG)}
