"""The fixtures of the small cloud."""

from tests.identity.fixtures import admin, anonymous, demo, openstack, people, static_folder  # noqa: F401
