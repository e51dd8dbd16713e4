"""Texts of others, made harmless for a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Without what moves a cursor or begins a new line: anybody may name a server anything."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
