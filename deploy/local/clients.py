"""Configuration of API clients: clouds.yaml for the OpenStack tools, openrc for shells."""

from __future__ import annotations

from pathlib import Path

from deploy.local.state import StackState, write_private

# floating_ip_source: otherwise openstacksdk's create_server(wait=True) looks for floating addresses to add.
CLOUD = """\
  {cloud}:
    region_name: RegionOne
    identity_api_version: 3
    floating_ip_source: none
    auth:
      auth_url: {url}/identity/v3
      username: {user}
      password: {password}
      project_name: {user}
      user_domain_id: default
      project_domain_id: default
"""
OPENRC = """\
# . this file, then: openstack server list
# As the administrator: OS_USERNAME=admin OS_PROJECT_NAME=admin, password in {admin_file}
export OS_AUTH_URL={url}/identity/v3
export OS_IDENTITY_API_VERSION=3
export OS_REGION_NAME=RegionOne
export OS_USERNAME=demo
export OS_PASSWORD={password}
export OS_PROJECT_NAME=demo
export OS_USER_DOMAIN_ID=default
export OS_PROJECT_DOMAIN_ID=default
"""
CLOUDS = {"stillwater": "demo", "stillwater-admin": "admin"}  # cloud -> name of the user and of the project


def clouds_yaml(state: StackState) -> Path:
    """Return the path of clouds.yaml."""
    return state.path("clouds.yaml")


def password_file(state: StackState, user: str) -> Path:
    """Return the file with the generated password of `admin` or `demo`."""
    return state.secret_file(f"{user}-password")


def write(state: StackState) -> None:
    """Write both files, readable by their owner only."""
    clouds = (
        CLOUD.format(cloud=cloud, url=state.api_url, user=user, password=state.secret(f"{user}-password"))
        for cloud, user in CLOUDS.items()
    )
    write_private(clouds_yaml(state), "clouds:\n" + "".join(clouds))
    openrc = OPENRC.format(
        url=state.api_url, password=state.secret("demo-password"), admin_file=password_file(state, "admin")
    )
    write_private(state.path("openrc"), openrc)
