"""manage.py image_import, and the admin page."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from cloud.identity.models import User
from cloud.images import service
from cloud.images.models import Image

pytestmark = [pytest.mark.django_db(databases=["default"]), pytest.mark.urls("tests.identity.urls")]


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk.raw"
    path.write_bytes(b"guest" * 1000)
    return path


def run(disk, *more, disk_format="raw"):
    out = StringIO()
    call_command(
        "image_import", "--name=tiny", f"--disk-format={disk_format}", f"--file={disk}", *more, stdout=out
    )
    return out.getvalue().strip()


def test_import_once_and_again(people, disk):
    image_id = run(disk, "--public", "--min-ram=64", "--property", "hw_disk_bus=virtio")
    image = Image.objects.get(pk=image_id)
    assert (image.status, image.visibility, image.min_ram) == ("active", "public", 64)
    assert image.owner == people.projects["admin"].id
    assert service.path(image_id).read_bytes() == disk.read_bytes()
    assert run(disk, "--public", "--property", "os_type=linux") == image_id
    assert Image.objects.get(pk=image_id).properties == {"os_type": "linux"}
    disk.write_bytes(b"newer")
    assert run(disk) != image_id


def test_what_is_refused_leaves_nothing(people, disk, images_folder):
    with pytest.raises(CommandError, match="declared format"):
        run(disk, disk_format="qcow2")
    with pytest.raises(CommandError, match="No such file"):
        run(disk.with_name("missing"))
    with pytest.raises(CommandError, match="status=x"):
        run(disk, "--property", "status=x")
    assert not Image.objects.exists()
    assert list(images_folder.iterdir()) == []


def test_the_admin_page_only_looks(people, client, disk):
    image_id = run(disk)
    client.force_login(User.objects.create_superuser("boss", "x"))
    assert client.get("/admin/images/image/").status_code == 200
    assert client.get(f"/admin/images/image/{image_id}/change/").status_code == 200
    assert client.get("/admin/images/image/add/").status_code == 403
    assert client.post(f"/admin/images/image/{image_id}/delete/", {"post": "yes"}).status_code == 403
