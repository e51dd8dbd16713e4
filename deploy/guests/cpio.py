"""A cpio archive (newc format) that is written without root: device nodes are only entries in it."""

from __future__ import annotations

import gzip
import io
import stat
from pathlib import Path


class Cpio:
    """The initial file system that a Linux kernel unpacks at boot."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._names: set[str] = set()

    def directory(self, name: str) -> None:
        parts = name.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self._entry("/".join(parts[:depth]), stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o755) -> None:
        self._parent(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def link(self, name: str, target: str) -> None:
        self._parent(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def device(self, name: str, major: int, minor: int, mode: int = 0o600) -> None:
        self._parent(name)
        self._entry(name, stat.S_IFCHR | mode, device=(major, minor))

    def write(self, target: Path) -> None:
        """Close the archive and write it compressed. The same content always gives the same bytes."""
        self._entry("TRAILER!!!", 0)
        target.write_bytes(gzip.compress(self._out.getvalue(), 6, mtime=0))

    def _parent(self, name: str) -> None:
        if "/" in name:
            self.directory(name.rsplit("/", 1)[0])

    def _entry(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        if name in self._names:
            return
        self._names.add(name)
        path = name.encode() + b"\0"
        fields = (len(self._names), mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        record = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        record += b"\0" * (-len(record) % 4) + data
        self._out.write(record + b"\0" * (-len(record) % 4))
