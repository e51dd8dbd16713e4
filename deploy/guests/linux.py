"""The tiny Linux guest: Debian's cloud kernel, busybox and one init script on a bootable disk; or with QEMU's agent."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from deploy.guests.cpio import Cpio
from deploy.guests.tools import CannotBuild, kernel_package, need, run, unpacked

INIT = Path(__file__).with_name("init.sh")
MBR = Path("/usr/lib/syslinux/mbr/mbr.bin")
MODULES = (
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "evdev",
    "button",
    "isofs",
    "vfat",
    "nls_ascii",
    "nls_cp437",
    "virtio_scsi",
    "sd_mod",
    "sr_mod",
    "ata_piix",
    "virtio-rng",
    "pvpanic-pci",
    "loop",
)
TOOLS = {
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
    "qemu-img": "qemu-utils",
    "syslinux": "syslinux",
    "mcopy": "mtools",
    "mkfs.vfat": "dosfstools",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
}
DIRECTORIES = (
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "mnt",
    "etc",
    "root",
    "var/log",
    "var/run",
    "sbin",
    "usr/bin",
    "usr/sbin",
)
FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
    "etc/hosts": b"127.0.0.1 localhost\n",
    "etc/os-release": b'ID=tiny\nNAME="Stillwater tiny Linux"\nVERSION_ID=1\n',
}
# The agent and the libraries that `ldd` lists for it, by Debian package.
AGENT = {
    "qemu-guest-agent": ("qemu-ga",),
    "libc6": ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6"),
    "libglib2.0-0": ("libglib-2.0.so.0", "libgmodule-2.0.so.0"),
    "libnuma1": ("libnuma.so.1",),
    "libpcre2-8-0": ("libpcre2-8.so.0",),
    "libudev1": ("libudev.so.1",),
    "liburing2": ("liburing.so.2",),
}
SHUTDOWN = b"#!/bin/sh\nsync\nprintf '\\nSTILLWATER DOWN agent\\n' > /dev/ttyS0\npoweroff -f\n"
SYSLINUX = """SERIAL 0 115200
DEFAULT linux
PROMPT 0
TIMEOUT 0
LABEL linux
  LINUX /vmlinuz
  INITRD /initrd.img
  APPEND console=tty0 console=ttyS0 quiet panic=1 stillwater.image=tiny-linux{options}
"""
MIB = 1 << 20
BOOT_MB, ROOT_MB = 24, 16
FIRST_SECTOR = 2048


def build(target: Path, cache: Path, *, agent: bool = False) -> None:
    """Write the bootable qcow2 image to `target`; downloaded packages are kept in `cache`. Raises CannotBuild.

    An image with the agent ignores its power button, so only the agent can shut it down.
    """
    for program, package in TOOLS.items():
        need(program, package)
    if not MBR.exists():
        raise CannotBuild(f"{MBR} is missing: apt-get install syslinux-common")
    kernel = unpacked(kernel_package(), cache)
    busybox = unpacked("busybox-static", cache) / "bin/busybox"
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        initrd = scratch / "initrd.img"
        _initrd(initrd, busybox, next((kernel / "lib/modules").iterdir()), _agent(cache) if agent else {})
        options = " stillwater.acpi=ignore" if agent else ""
        boot = _boot_partition(scratch, next((kernel / "boot").glob("vmlinuz-*")), initrd, options)
        disk = _disk(scratch, boot, _root_partition(scratch))
        run("qemu-img", "convert", "-O", "qcow2", "-c", disk, target)


def _agent(cache: Path) -> dict[str, bytes]:
    """Return QEMU's agent, its libraries and the `shutdown` that it calls, by their paths in the guest."""
    found = {"sbin/shutdown": SHUTDOWN}
    for package, names in AGENT.items():
        root = unpacked(package, cache)
        for name in names:
            place = {"qemu-ga": "usr/sbin", "ld-linux-x86-64.so.2": "lib64"}.get(name, "lib")
            found[f"{place}/{name}"] = next(root.rglob(name)).read_bytes()
    return found


def _initrd(target: Path, busybox: Path, modules: Path, more: dict[str, bytes]) -> None:
    archive = Cpio()
    for name in DIRECTORIES:
        archive.directory(name)
    archive.device("dev/console", 5, 1)
    archive.device("dev/null", 1, 3, 0o666)
    for name, content in more.items():  # before busybox: Cpio keeps the first entry of a name
        archive.file(name, content)
    archive.file("bin/busybox", busybox.read_bytes())
    for applet in run(busybox, "--list").split():
        if applet != "busybox":
            archive.link(f"bin/{applet}", "busybox")
    order = _load_order(modules)
    for module in order:
        archive.file(f"lib/modules/{module.name}", module.read_bytes(), 0o644)
    names = "".join(f"{module.name}\n" for module in order)
    archive.file("lib/modules/order", names.encode(), 0o644)
    archive.file("init", INIT.read_bytes())
    for name, content in FILES.items():
        archive.file(name, content, 0o644)
    archive.write(target)


def _load_order(directory: Path) -> list[Path]:
    """Return the paths of the kernel modules in MODULES, each after the modules it depends on."""
    index = {module.stem.replace("-", "_"): module for module in directory.rglob("*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        module = index.get(name.replace("-", "_"))
        if module is None or module in order:  # built into this kernel, or already listed
            return
        found = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
        for dependency in found.group(1).decode().split(",") if found else ():
            add(dependency)
        order.append(module)

    for name in MODULES:
        add(name)
    return order


def _boot_partition(scratch: Path, kernel: Path, initrd: Path, options: str) -> Path:
    image, settings = scratch / "boot.img", scratch / "syslinux.cfg"
    _empty(image, BOOT_MB * MIB)
    settings.write_text(SYSLINUX.format(options=options))
    run("mkfs.vfat", "-F", "16", "-n", "BOOT", image)
    for source, name in (
        (kernel, "vmlinuz"),
        (initrd, "initrd.img"),
        (settings, "syslinux.cfg"),
    ):
        run("mcopy", "-i", image, source, f"::/{name}")
    run("syslinux", "--install", image)
    return image


def _root_partition(scratch: Path) -> Path:
    image, content = scratch / "root.img", scratch / "root"
    content.mkdir()
    (content / "image-id").write_text("tiny-linux\n")
    _empty(image, ROOT_MB * MIB)
    run("mke2fs", "-q", "-t", "ext4", "-L", "stillroot", "-d", content, image)
    return image


def _disk(scratch: Path, boot: Path, root: Path) -> Path:
    disk = scratch / "disk.raw"
    _empty(disk, (1 + BOOT_MB + ROOT_MB + 1) * MIB)
    second = FIRST_SECTOR + BOOT_MB * 2048
    table = (
        f"label: dos\nstart={FIRST_SECTOR},size={BOOT_MB * 2048},type=6,bootable\n"
        f"start={second},size={ROOT_MB * 2048},type=83\n"
    )
    run("sfdisk", "-q", disk, feed=table)
    with disk.open("r+b") as out:
        out.write(MBR.read_bytes()[:440])
        out.seek(FIRST_SECTOR * 512)
        out.write(boot.read_bytes())
        out.seek(second * 512)
        out.write(root.read_bytes())
    return disk


def _empty(path: Path, size: int) -> None:
    with path.open("wb") as out:
        out.truncate(size)
