"""Untrusted text, made safe for a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Replace what is not printable, such as cursor movements and newlines: users choose the names of servers."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
