"""Hypervisors: plain Python drivers behind one contract (`base.Driver`)."""

from __future__ import annotations

from typing import Any

from compute.virt.base import Driver


def load(name: str, **options: Any) -> Driver:
    """Build the driver `name` ("libvirt", "ironic" or "fake") with its own options. Raises ValueError for another name.

    Call it after any fork: a libvirt connection does not survive one.
    """
    # Imported here so that the fake driver works without libvirt's C library, and the API process, which loads no
    # driver, imports none of them.
    if name == "fake":
        from compute.virt.fake.driver import FakeDriver  # noqa: PLC0415

        return FakeDriver(**options)
    if name == "libvirt":
        from compute.virt.libvirt.driver import LibvirtDriver  # noqa: PLC0415

        return LibvirtDriver(**options)
    if name == "ironic":
        from compute.virt.ironic.driver import IronicDriver  # noqa: PLC0415

        return IronicDriver(**options)
    raise ValueError(f"there is no hypervisor driver {name!r}; choose libvirt, ironic or fake")
