"""manage.py identity_bootstrap and token_key."""

from __future__ import annotations

from io import StringIO

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from cloud.identity import checks, tokens
from cloud.identity.models import Project, RoleAssignment, User

pytestmark = pytest.mark.django_db(databases=["default"])


@pytest.fixture
def bootstrap(tmp_path):
    def run(admin="first secret", demo="second secret"):
        (tmp_path / "admin").write_text(f"{admin}\n")
        (tmp_path / "demo").write_text(demo)
        out = StringIO()
        files = (f"--admin-password-file={tmp_path}/admin", f"--demo-password-file={tmp_path}/demo")
        call_command("identity_bootstrap", *files, stdout=out)
        return out.getvalue()

    return run


def test_the_first_run_makes_everything_and_shows_no_password(bootstrap):
    shown = bootstrap()
    assert "secret" not in shown
    assert User.objects.get(name="admin").check_password("first secret")
    assert User.objects.get(name="admin").is_superuser
    assert not User.objects.get(name="demo").is_staff
    assert set(RoleAssignment.objects.values_list("user__name", "project__name", "role")) == {
        ("admin", "admin", "admin"),
        ("admin", "demo", "admin"),
        ("demo", "demo", "member"),
    }


def test_the_second_run_changes_nothing_and_tokens_stay_good(bootstrap):
    bootstrap()
    before = list(User.objects.order_by("name").values())
    raw = tokens.issue(User.objects.get(name="demo"), Project.objects.get(name="demo"), ("password",))
    bootstrap()
    assert list(User.objects.order_by("name").values()) == before
    assert tokens.verify(raw).caller.user_name == "demo"
    assert (User.objects.count(), Project.objects.count(), RoleAssignment.objects.count()) == (2, 2, 3)


def test_a_changed_file_resets_the_password(bootstrap):
    bootstrap()
    bootstrap(demo="third secret")
    assert User.objects.get(name="demo").check_password("third secret")


def test_an_empty_file_is_refused(bootstrap):
    with pytest.raises(CommandError, match="empty"):
        bootstrap(demo=" ")


def test_token_key_prints_a_key():
    out = StringIO()
    call_command("token_key", stdout=out)
    Fernet(out.getvalue().strip())


def test_a_malformed_key_is_found_at_start(monkeypatch):
    assert checks.token_keys(None) == []
    monkeypatch.setenv("STILLWATER_TOKEN_KEYS", "nonsense")
    assert [found.id for found in checks.token_keys(None)] == ["identity.E002"]
    monkeypatch.setenv("STILLWATER_TOKEN_KEYS", "")
    monkeypatch.setenv("STILLWATER_ROLE", "api")
    assert [found.id for found in checks.token_keys(None)] == ["identity.E001"]
