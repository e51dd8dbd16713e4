"""Durations: parsed from options and from systemctl, formatted for people."""

from __future__ import annotations

import math
import re

YEAR = 31_536_000.0  # seconds
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800,
          "month": 2629800, "y": 31557600}  # fmt: skip


def parse_duration(text: str) -> float:
    """Return the seconds of "90", "1.5", "5min", "1h 30min" or "infinity", as in systemd.time(7). Raises ValueError."""
    if text == "infinity":
        return math.inf
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?) ?([a-z]+)\s*", text, re.ASCII)
    if not re.fullmatch(r"(\d+(\.\d+)? ?[a-z]+\s*)+", text, re.ASCII) or any(unit not in _UNITS for _, unit in parts):
        raise ValueError(f"{text!r} is not a duration: seconds, or for example 5min or 1h 30min")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: "2 d 3 h", "5 min 3 s", "40 s"."""
    whole = max(0, round(seconds))
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small}"
    return f"{whole} s"
