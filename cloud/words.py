"""Numbers in sentences for people."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 server`, `2 servers`; `many` where the plural needs more than an s: `operations need`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
