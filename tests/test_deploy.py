"""Units and manifests: complete, and patient enough for what they start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from django.urls import resolve

from cloud import env
from tasks.management.commands.host import Command
from tests.deployment import (
    GUESTS,
    GUESTS_TIMEOUT,
    KUBERNETES,
    MANIFESTS,
    ROLE,
    ROOT,
    SERVICES,
    SYSTEMD,
    UNITS,
    WORKLOADS,
    container,
    documents,
    every_document,
    generate,
    lines,
    pod,
    pre_stop,
    rendered,
    variables,
)

# -- the numbers


@pytest.mark.parametrize("kind", ["systemd", "kubernetes"])
def test_what_is_checked_in_is_what_is_generated(kind, tmp_path):
    done = generate(kind, "--check")
    assert done.returncode == 0, f"run: python -m deploy.{kind}\n{done.stdout}{done.stderr}"

    changed = tmp_path / "changed"
    shutil.copytree(ROOT / "deploy" / kind, changed)
    [file] = changed.glob("*host*")
    file.write_text(re.sub(r"\b200\b", "90", file.read_text()))
    done = generate(kind, "--check", "--output", str(changed))
    assert (done.returncode, file.name in done.stdout) == (1, True)


def test_every_role_has_a_unit_and_a_manifest():
    roles = set(env.GRACEFUL_SHUTDOWN_TIMEOUTS)
    assert {ROLE.search((SYSTEMD / name).read_text())[1] for name in SERVICES} == roles
    assert {ROLE.search((KUBERNETES / name).read_text())[1] for name in WORKLOADS} == roles


@pytest.mark.parametrize("name", SERVICES)
def test_systemd_waits_longer_than_the_process_does_and_tells_it(name):
    unit = lines(SYSTEMD / name)
    own = env.GRACEFUL_SHUTDOWN_TIMEOUTS[unit["STILLWATER_ROLE"][0]]
    [wait] = unit["TimeoutStopSec"]
    assert float(wait) > own
    assert unit["STILLWATER_SUPERVISOR_TIMEOUT"] == [wait]


@pytest.mark.parametrize("name", WORKLOADS)
def test_kubernetes_waits_longer_than_the_process_does_and_tells_it(name):
    told = float(variables(name)["STILLWATER_SUPERVISOR_TIMEOUT"])
    assert told > env.GRACEFUL_SHUTDOWN_TIMEOUTS[variables(name)["STILLWATER_ROLE"]]
    assert pod(name)["terminationGracePeriodSeconds"] == told + pre_stop(name), "the period begins with the hook"


def test_a_sites_own_timeout_moves_all_of_them(tmp_path):
    for kind in ("systemd", "kubernetes"):
        (tmp_path / kind).mkdir()
        out = rendered(kind, tmp_path / kind, STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="600.5")
        if kind == "systemd":
            assert {lines(out / name)["TimeoutStopSec"][0] for name in SERVICES} == {"621"}
            assert {lines(out / name)["STILLWATER_SUPERVISOR_TIMEOUT"][0] for name in SERVICES} == {"621"}
        else:
            assert {variables(name, out)["STILLWATER_SUPERVISOR_TIMEOUT"] for name in WORKLOADS} == {"621"}
            grace = {name: pod(name, out)["terminationGracePeriodSeconds"] for name in WORKLOADS}
            assert grace == {name: 621 + pre_stop(name) for name in WORKLOADS}
            assert grace["api.yaml"] > 621


def test_endless_is_endless(tmp_path):
    out = rendered("systemd", tmp_path, STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT="0")
    for name in SERVICES:
        assert lines(out / name)["TimeoutStopSec"] == ["infinity"]
        assert lines(out / name)["STILLWATER_SUPERVISOR_TIMEOUT"] == ["0"], "which means: it never kills"


# -- systemd


@pytest.mark.parametrize("name", SERVICES)
def test_a_stop_is_heard_by_the_process_alone_and_a_wrong_setting_is_not_tried_again(name):
    unit = lines(SYSTEMD / name)
    assert unit["KillMode"] == ["mixed"]
    assert unit["Type"] == ["notify"]
    assert unit["RestartPreventExitStatus"] == ["78"]
    wrong = subprocess.run(
        [sys.executable, "-c", "from cloud import env; env.get('STILLWATER_HOST_SLOTS')"], cwd=ROOT,
        env={"STILLWATER_HOST_SLOTS": "many"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert wrong.returncode == 78
    assert wrong.stderr.startswith("stillwater: STILLWATER_HOST_SLOTS: 'many' is not a valid int.")


def test_a_host_is_drained_before_the_machine_stops_its_guests():
    unit = lines(SYSTEMD / "stillwater-host@.service")
    after = " ".join(unit["After"]).split()
    assert {"libvirt-guests.service", "libvirtd.service"} <= set(after)  # started after them: stopped before them
    assert "Requires" not in unit, "a restart of libvirtd is no reason to stop"


def test_guests_go_off_before_their_host_and_libvirtd_are_stopped():
    unit, host = lines(SYSTEMD / GUESTS), lines(SYSTEMD / "stillwater-host@.service")
    after = set(" ".join(unit["After"]).split())
    # started after them: stopped before them, and before systemd stops the guests' scopes
    assert {"stillwater-host@%i.service", "libvirtd.service", "libvirt-guests.service"} <= after
    assert "virt-guest-shutdown.target" in after
    assert (unit["Type"], unit["RemainAfterExit"]) == (["oneshot"], ["yes"])
    assert not {"Requires", "BindsTo", "PartOf"} & set(unit), "a restart of the worker touches no guest"
    for same in ("STILLWATER_HOST", "STILLWATER_HOST_STATE", "EnvironmentFile", "User", "WorkingDirectory"):
        assert unit[same] == host[same]


def test_what_stops_the_guests_is_a_command_of_ours_with_a_time_that_fits(tmp_path):
    for own, timeout, wait in (("", "300", "360"), ("900", "900", "960"), ("0", "", "infinity")):
        folder = tmp_path / f"t{own}"
        folder.mkdir()
        out = rendered("systemd", folder, **({GUESTS_TIMEOUT: own} if own else {}))
        unit = lines(out / GUESTS)
        [stop] = unit["ExecStop"]
        assert unit["TimeoutStopSec"] == [wait]
        words = stop.replace("%i", "host1").split()[3:]
        asked = Command().create_parser("manage.py", "host").parse_args(words[1:])
        assert (words[0], asked.verb, asked.hosts, asked.force) == ("host", "shutdown-guests", ["host1"], True)
        assert asked.seconds == (float(timeout) if timeout else None)


# -- Kubernetes


def test_the_base_has_every_file():
    [base] = documents("kustomization.yaml")
    assert sorted([*base["resources"], "kustomization.yaml"]) == MANIFESTS


def test_every_selector_finds_its_pods():
    pods = [
        one["spec"]["template"]["metadata"]["labels"] for one in every_document() if "template" in one.get("spec", {})
    ]
    assert len({str(labels) for labels in pods}) == len(pods)
    for one in every_document():
        selector = one.get("spec", {}).get("selector")
        if selector:
            assert pods.count(selector.get("matchLabels", selector)) == 1, one["metadata"]["name"]


def test_all_but_hosts_keep_one_while_nodes_are_drained():
    budgets = {one["metadata"]["name"] for one in every_document() if one["kind"] == "PodDisruptionBudget"}
    kinds = {one["metadata"]["name"]: one for one in every_document() if one["kind"] in ("Deployment", "StatefulSet")}
    assert budgets == set(kinds)
    assert all(one["spec"]["replicas"] > 1 for one in kinds.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_secrets_are_named_and_never_said(name):
    values = {variable: value for variable, value in variables(name).items() if value}
    assert not [variable for variable in values if env.VARIABLES[variable].secret]
    [secret] = [one["secretRef"]["name"] for one in container(name)["envFrom"] if "secretRef" in one]
    assert secret == f"stillwater-{name.removesuffix('.yaml')}", "each role has its own, with no more than it may know"
    assert pod(name)["automountServiceAccountToken"] is False


def test_probes_ask_what_is_there():
    api = container("api.yaml")
    assert api["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert api["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        ask = api[probe]["httpGet"]
        assert resolve(ask["path"])
        [host] = [one["value"] for one in ask["httpHeaders"] if one["name"] == "Host"]
        assert host in env.VARIABLES["STILLWATER_ALLOWED_HOSTS"].default
        [config] = documents("config.yaml")
        assert host in config["data"]["STILLWATER_ALLOWED_HOSTS"].split(",")


def test_a_hosts_disks_are_where_its_libvirtd_finds_them():
    mounts = {one["name"]: one["mountPath"] for one in container("host-cell1.yaml")["volumeMounts"]}
    outside = {one["name"]: one["hostPath"]["path"] for one in pod("host-cell1.yaml")["volumes"] if "hostPath" in one}
    assert outside == {name: mounts[name] for name in ("libvirt", "disks")}
    assert variables("host-cell1.yaml")["STILLWATER_HOST_STATE"].startswith(mounts["disks"])


@pytest.mark.parametrize("path", [*(SYSTEMD / name for name in UNITS), *(KUBERNETES / name for name in MANIFESTS)],
                         ids=lambda path: path.name)  # fmt: skip
def test_every_variable_and_file_they_name_exists(path):
    text = path.read_text()
    assert set(re.findall(r"\bSTILLWATER_[A-Z_]*[A-Z]", text)) <= set(env.VARIABLES)
    for file in re.findall(r"(?<![\w./-])(?:cloud|deploy|docs)/[\w./-]*\w", text):
        assert (ROOT / file).exists(), file
