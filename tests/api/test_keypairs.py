"""Key pairs of a user."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from compute.placement import quota
from tests.conftest import PROJECT, client


def make(api, name="k1", version="2.96", **fields):
    return api.send("post", "/os-keypairs", {"keypair": {"name": name, **fields}}, version=version)


def message(answer, status):
    assert answer.status_code == status, answer.content
    (fault,) = answer.json().values()
    return fault["message"]


@pytest.fixture
def public():
    """A fresh public key."""
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def test_import_show_list_delete(api, public):
    made = make(api, public_key=public, type="ssh")
    assert made.status_code == 201
    pair = made.json()["keypair"]
    assert set(pair) == {"name", "public_key", "fingerprint", "type", "user_id"}
    assert len(pair["fingerprint"].split(":")) == 16

    shown = api.get("/os-keypairs/k1").json()["keypair"]
    assert {k: shown[k] for k in pair} == pair
    assert set(shown) - set(pair) == {"id", "created_at", "updated_at", "deleted", "deleted_at"}
    listed = api.get("/os-keypairs").json()
    assert listed == {"keypairs": [{"keypair": {k: v for k, v in pair.items() if k != "user_id"}}]}

    assert api.delete("/os-keypairs/k1").status_code == 204
    gone = f"Keypair k1 not found for user {api.caller.user_id}"
    assert message(api.get("/os-keypairs/k1"), 404) == gone
    assert message(api.delete("/os-keypairs/k1"), 404) == gone


def test_the_fingerprint_is_the_md5_that_ssh_keygen_shows(api):
    key = (
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDx8nkQv/zgGgB4rMYmIf+6A4l6Rr+o/6lHBQdW5aYd44bd8JttDCE/F/pNRr0l"
        "RE+PiqSPO8nDPHw0010JeMH9gYgnnFlyY3/OcJ02RhIPyyxYpv9FhY+2YiUkpwFOcLImyrxEsYXpD/0d3ac30bNH6Sw9JD9UZHYc"
        "pSxsIbECHw== Generated-by-Nova"
    )
    made = make(api, public_key=key).json()["keypair"]
    # The pair of Nova's own API samples.
    assert made["fingerprint"] == "1e:2c:9b:56:79:4b:45:77:f9:ca:7a:98:2c:b0:d5:3c"


def test_before_2_92_a_key_is_made_and_its_private_half_shown_once(api):
    made = make(api, version="2.91")
    assert made.status_code == 201

    private = serialization.load_pem_private_key(made.json()["keypair"]["private_key"].encode(), None)

    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    assert made.json()["keypair"]["public_key"].startswith(public.decode())
    assert "private_key" not in api.get("/os-keypairs/k1").json()["keypair"]


def test_a_certificate_is_made_and_imported(api):
    made = make(api, version="2.10", type="x509").json()["keypair"]
    certificate = x509.load_pem_x509_certificate(made["public_key"].encode())
    assert certificate.issuer == certificate.subject
    assert len(made["fingerprint"].split(":")) == 20

    again = make(api, "k2", type="x509", public_key=made["public_key"])
    assert again.json()["keypair"]["fingerprint"] == made["fingerprint"]


def test_since_2_92_the_key_must_be_given(api, public):
    assert message(make(api), 400) == "'public_key' is a required property"
    assert make(api, "me@here.org", public_key=public).status_code == 201
    assert "unsafe characters" in message(make(api, "me@there", public_key=public, version="2.91"), 400)


def test_codes_and_fields_of_2_1(api, public):
    made = make(api, public_key=public, version="2.1")

    assert made.status_code == 200
    assert "type" not in made.json()["keypair"]
    assert "'type' was unexpected" in message(make(api, "k2", version="2.1", type="ssh"), 400)
    assert api.delete("/os-keypairs/k1", version="2.1").status_code == 202


def test_a_taken_name_is_a_conflict_and_a_bad_key_is_refused(api, stranger, public):
    make(api, public_key=public)

    assert message(make(api, public_key=public), 409) == "Key pair 'k1' already exists."
    assert make(stranger, public_key=public).status_code == 201
    for bad in ("nonsense", "", "ssh-rsa AAAA", "ssh-ed25519"):
        text = message(make(api, "k2", public_key=bad), 400)
        assert text == "Keypair data is invalid: failed to generate fingerprint"
    text = message(make(api, "k2", public_key=public, type="pgp"), 400)
    assert "Invalid input for field/attribute type" in text


def test_others_keys_are_for_admins(api, admin, stranger, public):
    make(api, public_key=public)
    mine = f"user_id={api.caller.user_id}"

    assert len(admin.get(f"/os-keypairs?{mine}").json()["keypairs"]) == 1
    assert admin.get(f"/os-keypairs/k1?{mine}").status_code == 200
    assert admin.get("/os-keypairs", version="2.9").json() == {"keypairs": []}
    assert stranger.get(f"/os-keypairs?{mine}").status_code == 403
    assert make(stranger, public_key=public, user_id=api.caller.user_id).status_code == 403
    assert make(admin, "k2", public_key=public, user_id=api.caller.user_id).status_code == 201
    assert admin.delete(f"/os-keypairs/k2?{mine}").status_code == 204


def test_a_reader_has_keys_too(reader, public):
    assert make(reader, public_key=public).status_code == 201


def test_pages(api, public):
    for name in ("c", "a", "b"):
        make(api, name, public_key=public)

    first = api.get("/os-keypairs?limit=2").json()

    assert [one["keypair"]["name"] for one in first["keypairs"]] == ["a", "b"]
    assert "marker=b" in first["keypairs_links"][0]["href"]
    rest = api.get("/os-keypairs?limit=2&marker=b").json()
    assert [one["keypair"]["name"] for one in rest["keypairs"]] == ["c"]
    assert len(api.get("/os-keypairs?limit=2", version="2.34").json()["keypairs"]) == 3
    assert api.get("/os-keypairs?marker=z").status_code == 400


def test_quota(cells, public):
    quota.set_limits(PROJECT, {"key_pairs": 1})
    api = client("member")
    make(api, "one", public_key=public)

    assert message(make(api, "two", public_key=public), 403) == "Quota exceeded, too many key pairs."
