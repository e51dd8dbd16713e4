"""The fixtures of the small cloud, and a folder of images for each test."""

import pytest

from tests.identity.fixtures import admin, anonymous, demo, openstack, people, static_folder  # noqa: F401


@pytest.fixture(autouse=True)
def images_folder(settings, tmp_path):
    settings.STATE_DIR = tmp_path / "state"
    return settings.STATE_DIR / "images"
