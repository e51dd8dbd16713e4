"""Numbers in sentences for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """`1 server`, `2 servers`; `many` where an s at the end is not enough: `operations need`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
