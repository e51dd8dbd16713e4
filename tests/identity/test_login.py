"""Logging in, being known by a token, and losing it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.hashers import MD5PasswordHasher
from django.utils import timezone

from cloud.identity import tokens
from cloud.identity.hashers import Scrypt
from cloud.identity.models import RevokedToken, User
from tests.identity.fixtures import PASSWORD

pytestmark = [pytest.mark.django_db(databases=["default"]), pytest.mark.urls("tests.identity.urls")]
TOKENS = "/identity/v3/auth/tokens"


def by_name(name="demo", password=PASSWORD, domain=None):
    user = {"name": name, "password": password, "domain": domain or {"name": "Default"}}
    return {"methods": ["password"], "password": {"user": user}}


def log_in(client, identity, scope=None, query=""):
    auth = {"identity": identity} | ({"scope": scope} if scope else {})
    return client.post(TOKENS + query, {"auth": auth}, format="json")


def demo_project(people):
    return {"project": {"id": people.projects["demo"].id}}


def test_passwords_kept_at_another_speed_are_kept_anew_at_the_next_login(anonymous, people, settings, monkeypatch):
    settings.PASSWORD_HASHERS = ["cloud.identity.hashers.Scrypt", *settings.PASSWORD_HASHERS]
    for speed in (1 << 10, 1 << 11):
        monkeypatch.setattr(Scrypt, "work_factor", speed)
        assert log_in(anonymous, by_name()).status_code == 201
        assert log_in(anonymous, by_name(password="wrong")).status_code == 401
        kept = User.objects.get(name="demo").password
        assert kept.startswith("scrypt$")
        assert Scrypt().decode(kept)["work_factor"] == speed


def test_a_password_gives_a_token_for_a_project(anonymous, people):
    scope = {"project": {"name": "demo", "domain": {"id": "default"}}}
    answer = log_in(anonymous, by_name(), scope)
    assert answer.status_code == 201
    token = answer.json()["token"]
    assert token["project"]["id"] == people.projects["demo"].id
    assert token["user"]["id"] == people.users["demo"].id
    assert [role["name"] for role in token["roles"]] == ["member", "reader"]
    assert {entry["type"] for entry in token["catalog"]} == {"identity", "compute", "image"}
    assert token["methods"] == ["password"]
    assert len(answer["X-Subject-Token"]) < 250


def test_by_user_id_and_project_id_without_catalog(anonymous, people):
    identity = {"methods": ["password"]}
    identity["password"] = {"user": {"id": people.users["demo"].id, "password": PASSWORD}}
    answer = log_in(anonymous, identity, demo_project(people), "?nocatalog")
    assert answer.status_code == 201
    assert "catalog" not in answer.json()["token"]


def test_without_scope_the_default_project_or_none(anonymous, people):
    assert "project" not in log_in(anonymous, by_name()).json()["token"]
    people.users["demo"].default_project_id = people.projects["demo"].id
    people.users["demo"].save()
    assert log_in(anonymous, by_name()).json()["token"]["project"]["name"] == "demo"
    assert "project" not in log_in(anonymous, by_name(), "unscoped").json()["token"]


def test_a_token_gives_a_token_that_lives_no_longer(anonymous, people):
    first = log_in(anonymous, by_name())
    identity = {"methods": ["token"], "token": {"id": first["X-Subject-Token"]}}
    second = log_in(anonymous, identity, demo_project(people)).json()["token"]
    assert second["expires_at"] == first.json()["token"]["expires_at"]
    assert second["audit_ids"][1] == first.json()["token"]["audit_ids"][0]
    assert set(second["methods"]) == {"token", "password"}


@pytest.mark.parametrize(
    "identity",
    [
        by_name(password="wrong"),
        by_name("nobody"),
        by_name(domain={"name": "elsewhere"}),
        {"methods": ["totp"]},
        {"methods": ["token"], "token": {"id": "gAAAAnonsense"}},
        {"methods": ["token"], "token": {"id": ""}},
    ],
)
def test_wrong_credentials_are_401(anonymous, people, identity):
    answer = log_in(anonymous, identity)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == 401
    assert PASSWORD not in answer.content.decode()


def test_wrong_password_has_keystones_words(anonymous, people):
    error = log_in(anonymous, by_name(password="wrong")).json()["error"]
    assert error["message"] == "The request you have made requires authentication."


def test_an_unknown_user_costs_as_much_as_a_wrong_password(anonymous, people, monkeypatch):
    hashed = []
    encode = MD5PasswordHasher.encode

    def counting(self, password, salt):
        hashed.append(1)
        return encode(self, password, salt)

    monkeypatch.setattr(MD5PasswordHasher, "encode", counting)
    log_in(anonymous, by_name(password="wrong"))
    known = len(hashed)
    log_in(anonymous, by_name("nobody", password="wrong"))
    assert known == len(hashed) - known == 1


def test_projects_one_has_no_role_in_are_401(anonymous, people):
    for scope in ({"project": {"id": people.projects["other"].id}}, {"project": {"id": "nonsense"}},
                  {"system": {"all": True}}, {"domain": {"id": "default"}}):  # fmt: skip
        assert log_in(anonymous, by_name(), scope).status_code == 401


def test_disabled_users_and_projects_are_401_and_so_are_their_tokens(anonymous, people, demo):
    project, user = people.projects["demo"], people.users["demo"]
    assert demo.get("/identity/v3/auth/projects").status_code == 200
    project.enabled = False
    project.save()
    assert log_in(anonymous, by_name(), demo_project(people)).status_code == 401
    assert demo.get("/identity/v3/auth/projects").status_code == 401
    project.enabled = True
    project.save()
    user.is_active = False
    user.save()
    assert log_in(anonymous, by_name()).status_code == 401
    assert demo.get("/identity/v3/auth/projects").status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        [], 1, "auth", {}, {"auth": None}, {"auth": {}}, {"auth": {"identity": []}},
        {"auth": {"identity": {"methods": "password"}}}, {"auth": {"identity": {"methods": []}}},
        {"auth": {"identity": {"methods": [["password"]]}}},
        {"auth": {"identity": {"methods": ["password"]}}},
        {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": 5, "password": "x"}}}}},
        {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "a", "password": 7}}}}},
        {"auth": {"identity": {"methods": ["password"], "password": {"user": {"password": "x"}}}}},
        {"auth": {"identity": by_name("de\0mo")}},
        {"auth": {"identity": by_name(), "scope": 5}},
        {"auth": {"identity": by_name(), "scope": {"project": []}}},
        {"auth": {"identity": by_name(), "scope": {"project": {"id": 5}}}},
    ],
)  # fmt: skip
def test_malformed_bodies_are_400(anonymous, people, body):
    assert anonymous.post(TOKENS, body, format="json").status_code == 400


def test_a_wrong_type_does_not_echo_a_password(anonymous, people):
    user = {"name": ["x"], "password": PASSWORD, "domain": 5}
    answer = log_in(anonymous, {"methods": ["password"], "password": {"user": user}})
    assert answer.status_code == 400
    assert PASSWORD not in answer.content.decode()


def test_no_json_is_400_and_another_type_is_415(anonymous, people):
    assert anonymous.post(TOKENS, "{nope", content_type="application/json").status_code == 400
    assert anonymous.post(TOKENS, b"\xff", content_type="application/json").status_code == 400
    assert anonymous.post(TOKENS, "a=b", content_type="text/plain").status_code == 415


def test_own_token_can_be_shown_and_given_back(people, demo):
    subject = people.token("demo")
    shown = demo.get(TOKENS, headers={"X-Subject-Token": subject})
    assert shown.status_code == 200
    assert shown.json()["token"]["user"]["name"] == "demo"
    assert demo.head(TOKENS, headers={"X-Subject-Token": subject}).status_code == 200
    assert demo.delete(TOKENS, headers={"X-Subject-Token": subject}).status_code == 204
    assert demo.get(TOKENS, headers={"X-Subject-Token": subject}).status_code == 404
    assert demo.get(TOKENS).status_code == 400


def test_anothers_token_is_for_admins(people, demo, admin):
    subject = people.token("other")
    assert demo.get(TOKENS, headers={"X-Subject-Token": subject}).status_code == 403
    assert demo.delete(TOKENS, headers={"X-Subject-Token": subject}).status_code == 403
    assert admin.get(TOKENS, headers={"X-Subject-Token": subject}).status_code == 200


def test_a_revoked_token_is_401_and_others_are_not(people, demo):
    lost = people.client("demo")
    raw = lost._credentials["HTTP_X_AUTH_TOKEN"]
    assert demo.delete(TOKENS, headers={"X-Subject-Token": raw}).status_code == 204
    answer = lost.get("/identity/v3/auth/projects")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Keystone")
    assert demo.get("/identity/v3/auth/projects").status_code == 200


def test_revocations_are_forgotten_when_they_matter_no_more(people):
    RevokedToken.objects.create(audit_id="old", expires_at=timezone.now() - timedelta(seconds=1))
    tokens.revoke(tokens.decode(people.token("demo")))
    assert list(RevokedToken.objects.filter(audit_id="old")) == []
    assert RevokedToken.objects.count() == 1


def test_an_expired_token_is_401(anonymous, people):
    payload = tokens.decode(people.token("demo"))
    raw = tokens.encode(replace(payload, expires_at=timezone.now() - timedelta(seconds=1)))
    assert anonymous.get("/identity/v3/auth/projects", headers={"X-Auth-Token": raw}).status_code == 401


@pytest.mark.parametrize("raw", ["x", "gAAAAA", "é" * 20, "a" * 5000, "null", " "])
def test_what_was_never_a_token_is_401(anonymous, people, raw):
    answer = anonymous.get("/identity/v3/auth/projects", headers={"X-Auth-Token": raw})
    assert answer.status_code == 401


def test_a_token_of_another_cloud_is_401(anonymous, people, monkeypatch):
    raw = people.token("demo")
    old = "ZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmY="
    monkeypatch.setenv("STILLWATER_TOKEN_KEYS", Fernet.generate_key().decode())
    assert anonymous.get("/identity/v3/auth/projects", headers={"X-Auth-Token": raw}).status_code == 401
    monkeypatch.setenv("STILLWATER_TOKEN_KEYS", f"{Fernet.generate_key().decode()},{old}")
    assert anonymous.get("/identity/v3/auth/projects", headers={"X-Auth-Token": raw}).status_code == 200


def test_a_new_password_voids_old_tokens(anonymous, people, demo):
    own = f"/identity/v3/users/{people.users['demo'].id}/password"
    wrong = {"user": {"password": "new one", "original_password": "wrong"}}
    assert demo.post(own, wrong, format="json").status_code == 401
    right = {"user": {"password": "new one", "original_password": PASSWORD}}
    assert people.client("other").post(own, right, format="json").status_code == 403
    assert demo.post(own, right, format="json").status_code == 204
    assert demo.get("/identity/v3/auth/projects").status_code == 401
    assert log_in(anonymous, by_name()).status_code == 401
    assert log_in(anonymous, by_name(password="new one")).status_code == 201
    assert people.client("demo").get("/identity/v3/auth/projects").status_code == 200


def test_disabling_voids_tokens_for_good(people, admin, demo):
    url = f"/identity/v3/users/{people.users['demo'].id}"
    assert admin.patch(url, {"user": {"enabled": False}}, format="json").status_code == 200
    assert admin.patch(url, {"user": {"enabled": True}}, format="json").status_code == 200
    assert demo.get("/identity/v3/auth/projects").status_code == 401


def test_losing_the_last_role_voids_the_token(people, demo):
    people.users["demo"].assignments.all().delete()
    assert demo.get("/identity/v3/auth/projects").status_code == 401


def test_knowing_who_asks_costs_one_query(people, django_assert_num_queries):
    raw = people.token("demo")
    with django_assert_num_queries(1):
        bearer = tokens.verify(raw)
    assert bearer.caller.roles == {"member"}
    assert bearer.caller.project_name == "demo"
    assert not bearer.caller.is_admin


def test_an_unscoped_token_knows_its_user_and_has_no_catalog(anonymous, people):
    raw = log_in(anonymous, by_name())["X-Subject-Token"]
    listed = anonymous.get("/identity/v3/auth/projects", headers={"X-Auth-Token": raw}).json()["projects"]
    assert [project["name"] for project in listed] == ["demo"]
    assert anonymous.get("/identity/v3/auth/catalog", headers={"X-Auth-Token": raw}).status_code == 403
