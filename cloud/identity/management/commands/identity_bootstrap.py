"""manage.py identity_bootstrap: create the first projects and users. Idempotent."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from cloud.identity.models import Project, RoleAssignment, User


class Command(BaseCommand):
    """Creates the projects admin and demo, the users admin and demo, and their roles."""

    help = (
        "Create the projects admin and demo with a user each. Passwords come from files and are never shown."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. Passwords come in files: all users of the machine can see arguments."""
        parser.add_argument("--admin-password-file", required=True, type=Path)
        parser.add_argument("--demo-password-file", required=True, type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        """Create what is missing. A password is set only where it differs, so that tokens stay valid."""
        passwords = {name: _read(options[f"{name}_password_file"]) for name in ("admin", "demo")}
        with transaction.atomic():
            projects = {name: Project.objects.get_or_create(name=name)[0] for name in ("admin", "demo")}
            admin = _user("admin", passwords["admin"], projects["admin"], staff=True)
            demo = _user("demo", passwords["demo"], projects["demo"], staff=False)
            for user, place, role in (
                (admin, "admin", "admin"), (admin, "demo", "admin"), (demo, "demo", "member"),
            ):  # fmt: skip
                RoleAssignment.objects.get_or_create(user=user, project=projects[place], role=role)
        for project in projects.values():
            self.stdout.write(f"project {project.name} {project.id}")


def _read(path: Path) -> str:
    try:
        password = path.read_text().strip()
    except OSError as exc:
        raise CommandError(f"{path}: {exc.strerror}") from exc
    if not password:
        raise CommandError(f"{path} is empty.")
    return password


def _user(name: str, password: str, project: Project, *, staff: bool) -> User:
    user = User.objects.filter(name=name).first() or User(name=name, default_project_id=project.id)
    if staff:
        user.is_staff = user.is_superuser = True
    if not (user.password and user.check_password(password)):
        user.set_password(password)
    user.save()
    return user
