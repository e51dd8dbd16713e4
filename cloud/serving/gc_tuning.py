"""Garbage is taken out between requests, not while a client waits.

A request leaves some hundred objects that hold each other. Python looks for such things in the middle of whatever it
does, and so one request of several hundred took 30 to 60 ms longer than the others.
"""

from __future__ import annotations

import gc

from django.urls import get_resolver

SOME = 5_000  # new objects: enough to look through, between two requests
MANY = 50_000  # at the latest, also in the middle of one: a list of a thousand servers is tens of thousands
ROUNDS = 10  # until those are looked through again that were in use at the time


def settle() -> None:
    """What was loaded stays: nobody need go through it, again and again."""
    get_resolver().url_patterns  # noqa: B018  loaded now, and not by the first request
    gc.collect()
    gc.freeze()
    gc.set_threshold(MANY, ROUNDS, ROUNDS)


def take_out() -> None:
    """After an answer: when there is some, as much of it as Python would."""
    new, once, twice = gc.get_count()
    if new >= SOME:
        gc.collect((once >= ROUNDS) + (once >= ROUNDS and twice >= ROUNDS))
