"""The wheel, built and installed into an environment of its own: what is in it, and that its commands work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cloud import __version__, env

TOPS = ("cloud", "cells", "compute", "tasks", "templates")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Installed:
    """A machine's installation: its prefix has the .venv, `wheel` was installed there."""

    def __init__(self, prefix: Path, wheel: Path) -> None:
        self.prefix, self.wheel, self.bin = prefix, wheel, prefix / ".venv/bin"
        run(sys.executable, "-m", "venv", "--without-pip", str(prefix / ".venv"))
        run(sys.executable, "-m", "pip", f"--python={self.bin / 'python'}", "install", "-q", "--no-deps", str(wheel))
        [site] = (prefix / ".venv/lib").glob("python*/site-packages")
        # the packages we depend on, after our own
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.site = site

    def run(self, program: str, *words: str, **settings: str) -> str:
        """Run one of its programs outside of any clone; its output. Raises AssertionError."""
        state = {"STILLWATER_STATE": str(self.prefix / "state"), "PATH": PATH, "HOME": str(self.prefix)}
        return run(str(self.bin / program), *words, cwd=self.prefix, env=state | settings)


def run(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from this clone by the command of `make wheel`."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    run(*command, str(env.ROOT), env=os.environ | {"PIP_NO_CACHE_DIR": "1"})
    [wheel] = folder.glob("*.whl")
    (folder / "machine").mkdir()
    (folder / "machine/state").mkdir()
    return Installed(folder / "machine", wheel)


def test_it_has_every_file_of_our_packages_and_nothing_else(installed):
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *TOPS, "deploy/systemd"]
    tracked = run(*listing, cwd=env.ROOT)
    expected = {name for name in tracked.splitlines() if (env.ROOT / name).is_file()}
    expected -= {name for name in expected if name.startswith("deploy/") and name.endswith(".py")}
    with zipfile.ZipFile(installed.wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        [metadata] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    assert packed == expected
    assert {Path(name).suffix for name in packed} == {".py", ".html", ".service", ".socket"}
    assert f"\nVersion: {__version__}\n" in metadata
    wanted = re.findall(r"^([a-z][A-Za-z0-9.-]*)", (env.ROOT / "requirements.in").read_text(), re.MULTILINE)
    needs = re.findall(r"^Requires-Dist: ([A-Za-z0-9-]+)", metadata, re.MULTILINE)
    assert sorted(name.replace(".", "-") for name in wanted) == sorted(needs)


def test_its_manage_command_finds_settings_migrations_templates_and_static_files(installed):
    assert "no issues" in installed.run("stillwater-manage", "check")
    assert "No changes" in installed.run("stillwater-manage", "makemigrations", "--check", "--dry-run")
    installed.run("stillwater-manage", "migrate", "-v", "0")
    assert "m1.tiny created" in installed.run("stillwater-manage", "flavors_seed")
    assert "[ ]" not in installed.run("stillwater-manage", "showmigrations")
    assert str(installed.site) not in installed.run("stillwater-manage", "findstatic", "unfold/css/styles.css")
    look = "from django.template.loader import get_template as get; print(get('admin/stillwater/server.html').origin)"
    page = Path(installed.run("stillwater-manage", "shell", "-v", "0", "-c", look).strip())
    assert page == installed.site / "templates/admin/stillwater/server.html"


def test_its_other_programs_start(installed):
    assert "server" in installed.run("stillwater", "--help")
    assert "no issues" in installed.run("python", "-m", "cloud", "check")
    found = installed.run("python", "-m", "celery", "-A", "cloud.celery", "report", STILLWATER_ROLE="conductor")
    assert "celery" in found
    words = ["-m", "gunicorn", "--check-config", "--config=python:cloud.serving.conf", "cloud.wsgi"]
    installed.run("python", *words, STILLWATER_ROLE="api")


def test_it_writes_units_for_the_place_where_it_is_installed(installed, tmp_path):
    settings = tmp_path / "site.env"
    settings.write_text("STILLWATER_GRACEFUL_SHUTDOWN_TIMEOUT=600\n")
    words = ["systemd_units", f"--output={tmp_path}", f"--env-file={settings}"]
    written = installed.run("stillwater-manage", *words)
    names = {path.name for path in tmp_path.glob("stillwater-*")}
    assert names == {path.name for path in (env.ROOT / "deploy/systemd").glob("stillwater-*")}
    assert written.count("written: ") == len(names)
    host = (tmp_path / "stillwater-host@.service").read_text()
    assert f"ExecStart={installed.bin / 'celery'} " in host
    assert "TimeoutStopSec=620" in host
    assert installed.run("stillwater-manage", *words) == "", "a second run changes nothing"


def test_its_state_and_settings_are_where_a_machine_keeps_them(installed):
    look = "from cloud import env; print(env.state_dir(), env.ETC / 'stillwater.env', env.IS_CLONE)"
    shown = run(str(installed.bin / "python"), "-c", look, cwd=installed.prefix, env={"PATH": PATH})
    assert shown.split() == ["/var/lib/stillwater", "/etc/stillwater/stillwater.env", "False"]
