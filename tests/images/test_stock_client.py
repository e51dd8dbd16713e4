"""The `openstack` command as it is installed, against a live server."""

from __future__ import annotations

import pytest

from cloud.images import service

pytestmark = [
    pytest.mark.live,
    pytest.mark.django_db(databases=["default"], transaction=True),
    pytest.mark.urls("tests.identity.urls"),
]


def test_an_images_life(openstack, tmp_path):
    disk = tmp_path / "disk.img"
    disk.write_bytes(bytes(range(256)) * 10_000)
    made = openstack(
        "image create tiny --disk-format raw --property hw_disk_bus=scsi --tag t1 --file", str(disk)
    )
    assert service.path(made["id"]).read_bytes() == disk.read_bytes()
    assert [(one["Name"], one["Status"]) for one in openstack("image list")] == [("tiny", "active")]
    shown = openstack("image show tiny")
    assert shown["properties"]["hw_disk_bus"] == "scsi"
    assert shown["size"] == 2_560_000
    assert shown["tags"] == ["t1"]
    openstack("image set tiny --property os_type=linux --min-ram 64 --tag t2 --name tiny2", parse=False)
    openstack("image unset tiny2 --property hw_disk_bus --tag t1", parse=False)
    shown = openstack("image show tiny2")
    assert shown["properties"]["os_type"] == "linux"
    assert "hw_disk_bus" not in shown["properties"]
    assert (shown["min_ram"], shown["tags"]) == (64, ["t2"])
    openstack("image save tiny2 --file", str(tmp_path / "copy"), parse=False)
    assert (tmp_path / "copy").read_bytes() == disk.read_bytes()
    openstack("image set tiny2 --public", parse=False)
    assert [one["Name"] for one in openstack("image list --public --long", user="demo")] == ["tiny2"]
    assert "403" in openstack("image delete tiny2", user="demo", parse=False, fails=True)
    openstack("image delete tiny2", parse=False)
    assert openstack("image list") == []


def test_pages_are_followed(openstack, people):
    from cloud.images.models import Image

    own = people.projects["demo"].id
    Image.objects.bulk_create(Image(name=f"i{number}", owner=own) for number in range(60))
    assert len(openstack("image list", user="demo")) == 60
