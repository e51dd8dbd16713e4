"""Types of command-line arguments, for argparse. Each refuses a wrong value with what would be right."""

from __future__ import annotations

from argparse import ArgumentTypeError

from cloud.durations import YEAR, parse_duration


def seconds(text: str) -> float:
    """Return a duration of at most a year, in seconds."""
    try:
        value = parse_duration(text)
    except ValueError as wrong:
        raise ArgumentTypeError(str(wrong)) from None
    if value > YEAR:
        raise ArgumentTypeError(f"{text!r} is more than a year")
    return value


def positive_seconds(text: str) -> float:
    """As `seconds`, but more than 0."""
    value = seconds(text)
    if not value:
        raise ArgumentTypeError("must be more than 0 seconds")
    return value


def whole_seconds(text: str) -> int:
    """As `seconds`, but a whole number of them."""
    value = seconds(text)
    if not value.is_integer():
        raise ArgumentTypeError(f"{text!r} is not a whole number of seconds")
    return int(value)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def count_to_1000(text: str) -> int:
    """As `count`, but at most 1000."""
    value = count(text)
    if value > 1000:
        raise ArgumentTypeError(f"{text!r} is more than 1000")
    return value
