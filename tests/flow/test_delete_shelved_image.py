"""The image of a shelved server that is deleted: it goes, whoever dies on the way."""

from __future__ import annotations

import pytest

from cloud.images.models import Image
from tests.flow import one_host, two_hosts
from tests.flow.one_host import MOMENTS, booted, done
from tests.flow.test_shelve import SHELVE, images


@pytest.fixture
def deleted(api, cloud) -> str:
    """A server that was offloaded, and deleted this moment."""
    server_id = booted(api, cloud)
    done(api, cloud, server_id, SHELVE)
    assert api.delete(f"/servers/{server_id}").status_code == 204
    assert images()
    return server_id


@pytest.mark.parametrize("when", MOMENTS)
def test_a_conductor_that_is_killed_is_followed_by_another(when, cloud, deleted):
    two_hosts.killed(cloud, two_hosts.until(cloud, "delete_image"), when)
    cloud.work()
    assert not images()
    one_host.is_deleted(cloud, deleted)


def test_an_image_its_user_has_deleted_already_is_no_trouble(api, cloud, deleted):
    [image] = images()
    assert api.delete(f"/image/v2/images/{image.pk}").status_code == 204
    cloud.work()
    assert cloud.history(deleted)[-1].message is None
    one_host.is_deleted(cloud, deleted)


def test_an_image_its_user_protects_stays(cloud, deleted):
    Image.objects.filter(name="a-shelved").update(protected=True)
    cloud.work()
    assert len(images()) == 1
    one_host.is_deleted(cloud, deleted)
