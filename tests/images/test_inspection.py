"""Headers of images, without qemu-img behind them: it would refuse some of these, too, but only after opening them."""

from __future__ import annotations

import pytest

from cloud.images import inspection
from compute.virt.base import Image, ImageUnusable
from compute.virt.image_check import check
from tests.images import disks

ANOTHER_IMAGE = 'RW 2048 SPARSE "3f0c8f0e-5d2b-4b8e-9d6a-0a4a8c1f7a11"'  # images lie in one folder


@pytest.mark.parametrize(
    ("disk_format", "content", "reason"),
    [
        ("qcow2", disks.qcow2(version=1), "declared format"),
        ("qcow2", disks.qcow2(version=4), "declared format"),
        ("qcow2", disks.qcow2(size=1 << 63), "declared format"),
        ("qcow2", disks.qcow2(features=1 << 5), "declared format"),
        ("qcow2", disks.qcow2(features=1 << 63), "declared format"),
        ("qcow2", disks.qcow2()[:511], "declared format"),
        ("qcow2", disks.qcow2(backing=8, version=2), "backing file"),
        ("qcow2", disks.qcow2(backing=8, features=1 << 2), "backing file"),
        ("qcow2", disks.qcow2(features=1 << 2), "another file"),
        ("vmdk", disks.vmdk(extents=(ANOTHER_IMAGE,))[512:], "one-piece"),
        ("vmdk", disks.vmdk(capacity=0), "one-piece"),
        ("vmdk", disks.vmdk(extents=()), "one-piece"),
        ("vmdk", disks.vmdk(extents=(ANOTHER_IMAGE, ANOTHER_IMAGE)), "one-piece"),
        ("vmdk", disks.vmdk(extents=('createType="monolithicFlat"', ANOTHER_IMAGE)), "one-piece"),
        ("vmdk", disks.vmdk(extents=(ANOTHER_IMAGE, "a line of no kind")), "one-piece"),
        ("vmdk", disks.vmdk(footer=disks.vmdk_footer(descriptor=40)), "one-piece"),
        ("vmdk", b"a page of text that is no image " * 20 + b"\xff" * 8000, "one-piece"),
        ("iso", b"x" * 70000, "declared format"),
    ],
)
def test_what_is_refused_by_its_header(tmp_path, disk_format, content, reason):
    file = tmp_path / "image"
    file.write_bytes(content)
    with pytest.raises(inspection.ImageRefused, match=reason):
        inspection.virtual_size(file, disk_format)


def test_the_headers_of_these_tests_are_good_without_what_is_wrong_in_them(tmp_path):
    file = tmp_path / "image"
    for content, disk_format in (
        (disks.qcow2(), "qcow2"), (disks.qcow2(version=2), "qcow2"), (disks.qcow2(features=0b11011), "qcow2"),
        (disks.vmdk(extents=(ANOTHER_IMAGE,)), "vmdk"),
        (disks.vmdk(footer=disks.vmdk_footer()), "vmdk"),
    ):  # fmt: skip
        file.write_bytes(content)
        assert inspection.virtual_size(file, disk_format) == 1 << 20


@pytest.mark.parametrize("disk_format", ["qcow2", "qed", "vmdk", "vpc", "vhdx", "vdi"])
def test_a_host_takes_no_other_format_for_raw(tmp_path, disk_format):
    options = {"vpc": ("-o", "subformat=dynamic")}.get(disk_format, ())
    file = tmp_path / f"made.{disk_format}"
    file.write_bytes(disks.made_by_qemu(tmp_path, disk_format, *options))
    with pytest.raises(ImageUnusable, match="registered as raw"):
        check(file, Image("i", "raw"))


@pytest.mark.parametrize("content", [b"", b"text " * 300, b"text" * 200 + b"\xff" * 8000, bytes(510) + b"\x55\xaa"])
def test_a_host_takes_a_raw_image_as_it_is(tmp_path, content):
    file = tmp_path / "image"
    file.write_bytes(content)
    assert check(file, Image("i", "raw")) == len(content)
