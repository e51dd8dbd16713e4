"""Comparison of host facts with extra specs and image properties. Operators and names are Nova's."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge,  # at least: Nova's historical meaning of "="
    "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq, "s!=": operator.ne, "s<": operator.lt, "s<=": operator.le, "s>": operator.gt,
    "s>=": operator.ge, "<in>": lambda have, part: part in have,
}  # fmt: skip
_VERSIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_VERSION = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*(\d+(?:\.\d+){0,2})\s*\Z")
_SAME = {
    "amd64": "x86_64", "x64": "x86_64", "x86-64": "x86_64", "x86": "i686", "i386": "i686", "i486": "i686",
    "i586": "i686", "arm64": "aarch64", "armv8": "aarch64", "powerpc64le": "ppc64le",
}  # fmt: skip
_ALSO_RUNS = {"x86_64": {"i686"}}


def matches(have: str, asked: str) -> bool:
    """Whether `have`, a host's value, satisfies `asked`: a plain value, or an operator and its operands."""
    words = asked.split()
    if not words:
        return have == asked
    sign, rest = words[0], words[1:]
    if sign == "<or>":
        return have in rest[::2]
    if sign == "<all-in>":
        return all(word in have for word in rest)
    if sign in _TEXTS and rest:
        return _TEXTS[sign](have, rest[0])
    if sign in _NUMBERS and rest:
        return _compared(sign, have, rest[0])
    return have == asked


def runs(arch: str, asked: str) -> bool:
    """Whether a host of one architecture runs guests of another."""
    mine, wanted = _canonical(arch), _canonical(asked)
    return mine == wanted or wanted in _ALSO_RUNS.get(mine, ())


def version_fits(version: int, asked: str) -> bool:
    """Whether a version (7002022 is 7.2.22) fits a list like `>=6.0,<8`. A list that cannot be parsed fits nothing."""
    mine = (version // 1_000_000, version // 1_000 % 1_000, version % 1_000)
    for one in asked.split(","):
        found = _VERSION.match(one)
        if found is None:
            return False
        wanted = tuple(int(part) for part in found[2].split("."))
        if not _VERSIONS[found[1]](mine, wanted + (0,) * (3 - len(wanted))):
            return False
    return True


def _compared(sign: str, have: str, asked: str) -> bool:
    try:
        return _NUMBERS[sign](float(have), float(asked))
    except ValueError:
        return False


def _canonical(arch: str) -> str:
    return _SAME.get(arch.lower(), arch.lower())
