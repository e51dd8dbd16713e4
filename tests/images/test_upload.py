"""Content: checked, raced for, left behind, fetched with tickets."""

from __future__ import annotations

import io
import threading
import time
from datetime import timedelta

import pytest
from django.core import signing
from gunicorn.http.errors import ParseException

from cloud import errors
from cloud.caller import Caller
from cloud.images import file_store, format_check, service, tickets, upload
from cloud.images.api.file import _whole_chunks
from cloud.images.models import Image
from tests.images import disks
from tests.images.test_images import IMAGES, create, fill

pytestmark = [pytest.mark.django_db(databases=["default"]), pytest.mark.urls("tests.identity.urls")]
OCTETS = "application/octet-stream"


def refused(client, images_folder, disk_format, data):
    """The text of a refusal; the image is queued again, without a file, and takes better content."""
    image = create(client, disk_format=disk_format)
    answer = fill(client, image, data)
    assert answer.status_code == 400, answer.content
    assert client.get(f"{IMAGES}/{image['id']}").json()["status"] == "queued"
    assert list(images_folder.iterdir()) == []
    return answer.json()["badRequest"]["message"]


@pytest.mark.parametrize(
    ("disk_format", "options"),
    [
        ("qcow2", ()), ("qcow2", ("-o", "compat=0.10")), ("qcow2", ("-o", "extended_l2=on")),
        ("vdi", ()), ("vhdx", ()), ("vhd", ()),
        ("vmdk", ()), ("vmdk", ("-o", "subformat=streamOptimized")),
    ],
)  # fmt: skip
def test_honest_content_is_taken(demo, tmp_path, disk_format, options):
    image = create(demo, disk_format=disk_format)
    assert fill(demo, image, disks.made_by_qemu(tmp_path, disk_format, *options)).status_code == 204
    shown = demo.get(f"{IMAGES}/{image['id']}").json()
    assert shown["status"] == "active"
    assert 1 << 20 <= shown["virtual_size"] < 1.1 * (1 << 20)  # vhd rounds up


@pytest.mark.parametrize("subformat", ["monolithicFlat", "twoGbMaxExtentSparse"])
def test_vmdk_as_qemu_makes_it_in_pieces_is_refused(demo, images_folder, tmp_path, subformat):
    data = disks.made_by_qemu(tmp_path, "vmdk", "-o", f"subformat={subformat}")
    assert "vmdk" in refused(demo, images_folder, "vmdk", data)


def test_a_backing_file_is_refused(demo, images_folder, tmp_path):
    disks.made_by_qemu(tmp_path, "raw")
    data = disks.made_by_qemu(tmp_path, "qcow2", "-F", "raw", "-b", f"{tmp_path}/made.raw")
    assert "backing file" in refused(demo, images_folder, "qcow2", data)


def test_an_external_data_file_is_refused(demo, images_folder, tmp_path):
    data = disks.made_by_qemu(tmp_path, "qcow2", "-o", f"data_file={tmp_path}/secret,data_file_raw=on")
    assert "another file" in refused(demo, images_folder, "qcow2", data)


@pytest.mark.parametrize(
    "data",
    [
        b"short",
        b"QFI\xfb",
        b"x" * 70000,
        disks.qcow2()[:80],
        disks.qcow2(size=1 << 63),
        disks.qcow2(features=1 << 9),
    ],
)
def test_what_is_not_qcow2_is_refused(demo, images_folder, data):
    assert "not of the declared format" in refused(demo, images_folder, "qcow2", data)


@pytest.mark.parametrize(
    "data",
    [
        b"# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 1 FLAT \"/etc/passwd\" 0\n",
        disks.vmdk("monolithicFlat", ('RW 2048 FLAT "/etc/passwd" 0',)),
        disks.vmdk(extents=('RW 2048 SPARSE "/etc/passwd"',)),
        disks.vmdk(extents=('RW 1 SPARSE "a"', 'RW 1 SPARSE "b"')),
        disks.vmdk(capacity=0),
    ],
)  # fmt: skip
def test_vmdk_of_several_files_is_refused(demo, images_folder, data):
    assert "vmdk" in refused(demo, images_folder, "vmdk", data)


def test_one_format_declared_as_another_is_refused(demo, images_folder, tmp_path):
    assert "qcow2" in refused(demo, images_folder, "qcow2", disks.made_by_qemu(tmp_path, "vdi"))
    assert "vdi" in refused(demo, images_folder, "vdi", b"x" * 70000)
    assert "iso" in refused(demo, images_folder, "iso", b"x" * 70000)


def test_raw_is_taken_as_it_is(demo):
    image = create(demo)
    assert fill(demo, image, disks.qcow2(backing=8)).status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}").json()["virtual_size"] == 65536


def test_without_qemu_img_headers_decide(demo, images_folder, monkeypatch):
    monkeypatch.setattr(format_check.shutil, "which", lambda name: None)
    image = create(demo, disk_format="qcow2")
    assert fill(demo, image, disks.qcow2()).status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}").json()["virtual_size"] == 1 << 20
    demo.delete(f"{IMAGES}/{image['id']}")
    assert "backing file" in refused(demo, images_folder, "qcow2", disks.qcow2(backing=104))
    assert "another file" in refused(demo, images_folder, "qcow2", disks.qcow2(features=4))
    assert "cannot check" in refused(demo, images_folder, "vdi", b"x" * 1000)


def test_formats_must_be_known_first(demo):
    image = demo.post(IMAGES, {"name": "x"}, format="json").json()
    assert fill(demo, image).status_code == 400


def test_content_is_sent_as_octets(demo):
    image = create(demo)
    url = f"{IMAGES}/{image['id']}/file"
    assert demo.put(url, b"{}", content_type="application/json").status_code == 415


def test_over_the_limit_is_413_announced_or_not(demo, images_folder, monkeypatch):
    monkeypatch.setenv("STILLWATER_IMAGE_SIZE_LIMIT", "50")
    image = create(demo)
    assert fill(demo, image).status_code == 413
    chunked = chunks(demo, image, b"x" * 51)
    assert chunked.status_code == 413
    assert chunks(demo, image, b"x" * 50).status_code == 204
    assert [path.name for path in images_folder.iterdir()] == [image["id"]]


def chunks(client, image, data):
    """A body without length, as gunicorn hands it on."""
    extra = {
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input_terminated": True,
        "wsgi.input": io.BytesIO(data),
    }
    return client.generic("PUT", f"{IMAGES}/{image['id']}/file", b"", content_type=OCTETS, **extra)


def test_more_than_djangos_body_limit_is_taken(demo, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    image = create(demo)
    assert fill(demo, image, b"x" * 3_000_000).status_code == 204
    assert demo.get(f"{IMAGES}/{image['id']}").json()["size"] == 3_000_000


def test_an_upload_that_breaks_off_leaves_nothing(demo, images_folder):
    image = create(demo)
    with pytest.raises(errors.BadRequest, match="broke off: 10 of 100"):
        upload.receive(image["id"], io.BytesIO(b"x" * 10).read, 100)

    def gone(size):
        raise OSError("connection reset")

    def nonsense(size):
        raise ParseException("no chunk size")

    with pytest.raises(errors.BadRequest, match="broke off"):
        upload.receive(image["id"], _whole_chunks(nonsense), None)
    with pytest.raises(errors.BadRequest, match="broke off"):
        upload.receive(image["id"], gone, 100)
    assert list(images_folder.iterdir()) == []
    assert Image.objects.get(pk=image["id"]).status == "queued"


def test_two_uploads_of_one_image_one_wins(demo):
    image = create(demo)
    inside = []

    def slow(size):
        if not inside:
            inside.append(fill(demo, image, b"second"))
            return b"first"
        return b""

    upload.receive(image["id"], slow, None)
    assert inside[0].status_code == 409
    assert inside[0]["Retry-After"] == "5"
    assert "Retry-After" not in fill(demo, image, b"third")
    assert service.path(image["id"]).read_bytes() == b"first"


def test_an_image_deleted_while_it_comes_in_leaves_nothing(demo, images_folder):
    image = create(demo)
    sent = []

    def deleting(size):
        if sent:
            return b""
        sent.append(1)
        assert demo.delete(f"{IMAGES}/{image['id']}").status_code == 204
        return b"data"

    with pytest.raises(errors.NotFound):
        upload.receive(image["id"], deleting, None)
    assert list(images_folder.iterdir()) == []
    assert Image.objects.get(pk=image["id"]).status == "deleted"


def test_what_dead_uploads_left_is_swept_by_the_next(demo, images_folder):
    dead, living, other = create(demo), create(demo), create(demo)
    file_store.part(dead["id"]).write_bytes(b"half")
    Image.objects.filter(pk__in=[dead["id"], living["id"]]).update(status="saving")
    file_store.part(living["id"]).write_bytes(b"half")
    orphan = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
    (images_folder / orphan).write_bytes(b"its row is gone")
    with file_store.only_writer(living["id"]):
        assert fill(demo, other).status_code == 204
        assert file_store.part(living["id"]).exists()
    assert sorted(path.name for path in images_folder.iterdir()) == sorted(
        [other["id"], f"{living['id']}.part"]
    )
    status = dict(Image.objects.values_list("pk", "status"))
    assert (status[dead["id"]], status[living["id"]]) == ("queued", "saving")
    assert fill(demo, living).status_code == 204


def test_one_writer_among_many_threads(images_folder):
    image_id, inside, refusals, most = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", [], [], []

    def write():
        for _ in range(50):
            try:
                with file_store.only_writer(image_id):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except errors.Conflict:
                refusals.append(1)

    threads = [threading.Thread(target=write) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert max(most) == 1
    assert len(most) + len(refusals) == 400


def test_a_ticket_opens_one_image_for_one_right(anonymous, demo):
    image, another = create(demo), create(demo)
    url = f"{IMAGES}/{image['id']}/file"
    write, read = tickets.issue(image["id"], "write"), tickets.issue(image["id"], "read")
    put = {"data": b"guest", "content_type": OCTETS}
    assert anonymous.put(f"{url}?ticket={read}", **put).status_code == 401
    assert anonymous.put(f"{IMAGES}/{another['id']}/file?ticket={write}", **put).status_code == 401
    assert anonymous.put(f"{url}?ticket={write}", **put).status_code == 204
    assert anonymous.get(f"{url}?ticket={write}").status_code == 401
    assert anonymous.get(f"{IMAGES}/{another['id']}/file?ticket={read}").status_code == 401
    assert anonymous.get(f"{url}?ticket=nonsense").status_code == 401
    assert anonymous.get(f"{url}?ticket={read[:-1]}").status_code == 401
    fetched = anonymous.get(f"{url}?ticket={read}")
    assert b"".join(fetched.streaming_content) == b"guest"
    assert anonymous.get(url, headers={"X-Image-Ticket": read}).status_code == 200
    assert anonymous.get(f"{IMAGES}/{image['id']}?ticket={read}").status_code == 401
    assert anonymous.delete(f"{url}?ticket={write}").status_code == 401
    demo.delete(f"{IMAGES}/{image['id']}")
    assert anonymous.get(f"{url}?ticket={read}").status_code == 404


def test_a_ticket_grows_old(monkeypatch):
    image_id = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"
    ticket = tickets.issue(image_id, "read")
    tickets.check(ticket, image_id, "read")
    later = time.time() + timedelta(days=8).total_seconds()
    monkeypatch.setattr(signing.time, "time", lambda: later)
    with pytest.raises(errors.Unauthorized):
        tickets.check(ticket, image_id, "read")


def test_a_ticket_is_in_no_log(anonymous, demo, caplog):
    image = create(demo)
    ticket = tickets.issue(image["id"], "read")
    with caplog.at_level("DEBUG"):
        raw = {"RAW_URI": f"/x?ticket={ticket}"}
        answer = anonymous.put(
            f"{IMAGES}/{image['id']}/file?ticket={ticket}", b"x", content_type=OCTETS, **raw
        )
    assert answer.status_code == 401
    assert caplog.records
    for record in caplog.records:
        assert ticket not in f"{record.getMessage()} {record.__dict__}"
    assert ticket not in str(answer.wsgi_request.META["RAW_URI"])


def test_snapshot_records_and_discarding_them(people):
    caller = Caller("u", "demo", people.projects["demo"].id, "demo", frozenset({"member"}))
    image = service.create_snapshot_record(caller, "snap", {"instance_uuid": "i"}, min_disk=1)
    assert (image.status, image.visibility, image.owner) == ("queued", "private", caller.project_id)
    assert image.properties == {"image_type": "snapshot", "instance_uuid": "i"}
    again = service.create_snapshot_record(caller, "snap", image_id=image.pk)
    assert (again.pk, again.min_disk) == (image.pk, 1)
    with pytest.raises(errors.BadRequest):
        service.create_snapshot_record(caller, "snap", {"status": "active"})
    assert service.visible_to(caller, image.pk).pk == image.pk
    service.discard(image.pk)
    service.discard(image.pk)
    with pytest.raises(errors.NotFound, match=f"Image {image.pk} could not be found."):
        service.visible_to(caller, image.pk)


def test_discarding_leaves_what_came_after_all(demo):
    image = create(demo)
    fill(demo, image)
    service.discard(image["id"])
    assert demo.get(f"{IMAGES}/{image['id']}").json()["status"] == "active"


def test_an_unscoped_caller_sees_public_images_only(admin):
    public, _ = create(admin, visibility="public"), create(admin)
    Image.objects.create(name="ownerless", visibility="private")
    assert [image.pk for image in service.visible(Caller("u"))] == [public["id"]]


def test_paths_are_made_of_uuids_only():
    for image_id in (
        "..",
        "x",
        "../x",
        "AAAAAAAA-bbbb-4ccc-8ddd-eeeeeeeeeeee",
        "{aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee}",
    ):
        with pytest.raises(ValueError):
            service.path(image_id)
