"""The command line itself: no cloud is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.cli import actions, arguments
from tests.cli.conftest import COMMAND, ROOT

GRACE = {"shutdown_type": "SOFT", "shutdown_timeout": 9}
HARD = {"shutdown_type": "HARD"}
SLOW_TO_IMPORT = ("openstack", "keystoneauth1", "rich", "requests", "django", "celery", "cells", "compute", "tasks")
NOBODY_THERE = {
    "OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_USERNAME": "u", "OS_PASSWORD": "p", "OS_PROJECT_NAME": "p",
    "OS_USER_DOMAIN_ID": "default", "OS_PROJECT_DOMAIN_ID": "default",
}  # fmt: skip


def typed(*words, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"} | variables
    return subprocess.run(
        [*COMMAND, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("line", "method", "path", "body"),
    [
        ("stop s", "POST", "/action", {"os-stop": None}),
        ("stop s --hard-shutdown", "POST", "/action", {"os-stop": HARD}),
        ("stop s --shutdown-timeout 9", "POST", "/action", {"os-stop": GRACE}),
        ("stop s --shutdown-timeout 2min", "POST", "/action", {"os-stop": GRACE | {"shutdown_timeout": 120}}),
        ("start s", "POST", "/action", {"os-start": None}),
        ("reboot s", "POST", "/action", {"reboot": {"type": "SOFT"}}),
        ("reboot s --hard", "POST", "/action", {"reboot": {"type": "HARD"}}),
        ("reboot s --hard-shutdown", "POST", "/action", {"reboot": {"type": "HARD"}}),
        ("delete s", "DELETE", "", None),
        ("delete s --soft-shutdown", "DELETE", "?shutdown_type=SOFT", None),
        ("delete s --hard-shutdown", "DELETE", "?shutdown_type=HARD", None),
        ("delete s --shutdown-timeout 9", "DELETE", "?shutdown_type=SOFT&shutdown_timeout=9", None),
        ("delete s --soft-shutdown --shutdown-timeout 9", "DELETE", "?shutdown_type=SOFT&shutdown_timeout=9", None),
        ("rescue s", "POST", "/action", {"rescue": None}),
        ("rescue s --password p", "POST", "/action", {"rescue": {"adminPass": "p"}}),
        ("rescue s --image i --hard-shutdown", "POST", "/action", {"rescue": {"rescue_image_ref": "I"} | HARD}),
        ("unrescue s", "POST", "/action", {"unrescue": None}),
        ("shelve s --shutdown-timeout 0", "POST", "/action", {"shelve": GRACE | {"shutdown_timeout": 0}}),
        ("unshelve s", "POST", "/action", {"unshelve": None}),
        ("migrate s", "POST", "/action", {"migrate": None}),
        ("migrate s --host h --hard-shutdown", "POST", "/action", {"migrate": {"host": "h"} | HARD}),
        ("resize s --flavor f", "POST", "/action", {"resize": {"flavorRef": "F"}}),
        ("resize s --flavor f --shutdown-timeout 9", "POST", "/action", {"resize": {"flavorRef": "F"} | GRACE}),
        ("resize s --confirm", "POST", "/action", {"confirmResize": None}),
        ("resize s --revert", "POST", "/action", {"revertResize": None}),
    ],
)
def test_what_is_typed_is_what_is_asked(line, method, path, body):
    words = arguments.parse(["server", *line.split()])
    ids = {"flavor": "F", "image": "I"} if words.verb != "rescue" or words.image else {}
    request = actions.build_request(actions.select_action(words), words, "ID", ids)
    assert request == actions.ApiRequest(method, f"/servers/ID{path}", body)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "required: COMMAND"),
        ("server", "required: VERB"),
        ("server stop", "required: SERVER"),
        ("server stop s --hard-shutdown --shutdown-timeout 5", "give it or --shutdown-timeout, not both"),
        ("server stop s --shutdown-timeout -1", "'-1' is not a duration"),
        ("server stop s --shutdown-timeout 1.5", "'1.5' is not a whole number of seconds"),
        ("server stop s --shutdown-timeout soon", "'soon' is not a duration: seconds, or for example 5min"),
        ("server stop s --soft-shutdown", "unrecognized arguments"),
        ("server delete s --soft-shutdown --hard-shutdown", "not allowed with argument --soft-shutdown"),
        ("server resize s", "one of the arguments --flavor --confirm --revert is required"),
        ("server resize s --flavor f --confirm", "not allowed with argument --flavor"),
        ("server resize s --revert --hard-shutdown", "shut nothing down"),
        ("server stop s --timeout 5", "--timeout needs --wait"),
        ("server stop s --wait --timeout nan", "'nan' is not a duration"),
        ("server stop s --wait --timeout 0", "must be more than 0 seconds"),
        ("server list --limit 0", "'0' is not a whole number of at least 1"),
        ("server stop s -c colour", "there is no column colour; there are id, name, action"),
        ("server list -f yaml", "invalid choice: 'yaml'"),
        ("server stop s --wai", "unrecognized arguments: --wai"),
    ],
)
def test_what_makes_no_sense_is_said_and_is_2(line, said):
    done = typed(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_cloud_may_be_named_before_or_after_the_verb():
    for line in ("--os-cloud a server list", "server --os-cloud a list", "server list --os-cloud a"):
        assert arguments.parse(line.split()).os_cloud == "a"
    assert arguments.parse(["server", "list"]).os_cloud is None


def test_help_has_examples_and_exit_codes():
    for words in ([], ["server"]):
        shown = typed(*words, "--help")
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "stillwater server stop web1 web2 --wait" in shown.stdout
        assert "4 the wait timed out" in shown.stdout
    assert "--shutdown-timeout TIME" in typed("server", "stop", "--help").stdout


def test_help_is_there_at_once():
    program = (
        "import sys\nfrom cloud.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not {name.partition(".")[0] for name in done.stderr.split()} & set(SLOW_TO_IMPORT)


def test_the_command_is_installed_and_runs_from_anywhere(tmp_path):
    (tmp_path / "cloud").mkdir()
    (tmp_path / "cloud/__init__.py").write_text("raise SystemExit('not ours')")
    command = Path(sys.executable).with_name("stillwater")
    assert command.exists(), "run: make bootstrap"
    done = subprocess.run([str(command), "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("stillwater ")


@pytest.mark.parametrize(
    ("words", "variables", "code", "said", "advice"),
    [
        ((), {}, 2, "no cloud to log in to: ", "--os-cloud NAME, or export OS_CLOUD=NAME"),
        (("--os-cloud", "x"), {}, 2, "no cloud to log in to: Cloud x was not found", "OS_CLIENT_CONFIG_FILE=FILE"),
        ((), NOBODY_THERE, 1, "Unable to establish connection to http://127.0.0.1:1/v3/auth/tokens", "Is the cloud up"),
    ],
    ids=["no cloud", "no such cloud", "nobody there"],
)
def test_without_a_cloud_it_says_what_to_do(words, variables, code, said, advice):
    done = typed("server", "list", *words, **variables)
    assert (done.returncode, done.stdout) == (code, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"stillwater: {said}")
    assert advice in second
