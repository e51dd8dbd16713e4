"""A small cloud: projects admin, demo and other; users admin, demo, other and reader; stock clients."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from django.conf import settings
from rest_framework.test import APIClient

from cloud.identity import tokens
from cloud.identity.models import Project, RoleAssignment, User
from tests import stock

PASSWORD = "correct horse battery"
ROLES = (
    ("admin", "admin", "admin"), ("admin", "demo", "admin"), ("demo", "demo", "member"),
    ("reader", "demo", "reader"), ("other", "other", "member"),
)  # fmt: skip


@dataclass
class People:
    """The users and projects of the small cloud."""

    users: dict[str, User]
    projects: dict[str, Project]

    def token(self, user: str, project: str | None = None) -> str:
        return tokens.issue(self.users[user], self.projects[project or _home(user)], ("password",))

    def client(self, user: str, project: str | None = None) -> APIClient:
        client = APIClient()
        client.credentials(HTTP_X_AUTH_TOKEN=self.token(user, project))
        return client


def _home(user: str) -> str:
    return next(project for name, project, _ in ROLES if name == user)


@pytest.fixture(scope="session", autouse=True)
def static_folder():
    """whitenoise warns of a missing folder, and warnings are errors."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)


@pytest.fixture
def people(db) -> People:
    projects = {name: Project.objects.create(name=name) for name in ("admin", "demo", "other")}
    users = {name: User.objects.create_user(name, PASSWORD) for name in ("admin", "demo", "other", "reader")}
    for user, project, role in ROLES:
        RoleAssignment.objects.create(user=users[user], project=projects[project], role=role)
    return People(users, projects)


@pytest.fixture
def anonymous() -> APIClient:
    return APIClient()


@pytest.fixture
def admin(people) -> APIClient:
    return people.client("admin")


@pytest.fixture
def demo(people) -> APIClient:
    return people.client("demo")


@pytest.fixture
def openstack(live_server, people, settings, tmp_path):
    """The real command line client against a real server: `openstack("token issue")` is parsed JSON."""
    settings.PUBLIC_URL = live_server.url

    def run(command: str, *more: str, user: str = "admin", parse: bool = True, fails: bool = False):
        words = [*command.split(), *more, *(["-f", "json"] if parse else [])]
        env = {
            "PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8",
            "OS_AUTH_URL": f"{live_server.url}/identity/v3", "OS_IDENTITY_API_VERSION": "3",
            "OS_USERNAME": user, "OS_PASSWORD": PASSWORD, "OS_PROJECT_NAME": _home(user),
            "OS_USER_DOMAIN_NAME": "Default", "OS_PROJECT_DOMAIN_ID": "default",
        }  # fmt: skip
        done = stock.run(*words, env=env, seconds=120)
        assert (done.returncode != 0) == fails, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stderr if fails else json.loads(done.stdout) if parse else done.stdout

    return run
