"""The documents clients read first."""

import json
from io import BytesIO

import requests
from keystoneauth1 import discover, session
from requests.adapters import BaseAdapter
from rest_framework.test import APIClient

from compute.contract import microversion


def test_the_list_names_the_one_version_there_is():
    answer = APIClient().get("/compute/")

    assert answer.status_code == 200
    (version,) = answer.json()["versions"]
    assert version["id"] == "v2.1"
    assert version["status"] == "CURRENT"
    assert version["version"] == microversion.text(microversion.MAXIMUM)
    assert version["min_version"] == "2.1"
    assert version["updated"] == "2013-07-23T11:33:21Z"
    assert version["links"][0]["href"].endswith("/compute/v2.1/")


def test_both_spellings_of_both_paths_answer_without_a_token():
    for path in ("/compute", "/compute/", "/compute/v2.1", "/compute/v2.1/"):
        assert APIClient().get(path).status_code == 200, path


def test_the_version_document_has_media_types():
    version = APIClient().get("/compute/v2.1").json()["version"]

    assert version["media-types"][0]["type"] == "application/vnd.openstack.compute+json;version=2.1"
    assert [one["rel"] for one in version["links"]] == ["self", "describedby"]


class Wired(BaseAdapter):
    """Requests of keystoneauth, answered by Django's test client."""

    def send(self, request, **kwargs):
        """One request."""
        answer = APIClient().get(requests.utils.urlparse(request.url).path)
        response = requests.Response()
        response.status_code, response.url, response.request = answer.status_code, request.url, request
        response.headers["Content-Type"] = "application/json"
        response.raw = BytesIO(json.dumps(answer.json()).encode())
        return response

    def close(self):
        """Nothing to close."""


def test_keystoneauth_discovers_us():
    http = requests.Session()
    http.mount("http://", Wired())
    for path in ("/compute", "/compute/v2.1"):
        found = discover.Discover(session.Session(session=http), f"http://cloud{path}")
        data = found.versioned_data_for(min_version=(2, 1), max_version=(2, "latest"))
        assert data["max_microversion"] == microversion.MAXIMUM
        assert data["min_microversion"] == (2, 1)
        assert data["url"].rstrip("/").endswith("/compute/v2.1")
