"""Which events are on record already: a client that repeats itself, and a service that says the same thing again."""

from datetime import UTC, datetime, timedelta

import pytest

from compute.external_events.deduplication import Entry, Event, new_events

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OTHER = Entry(None, NOON)


def event(tag, minute=0.0, request="req-1"):
    return Event("s", "power-update", tag, "completed", request, "u", "p", NOON + timedelta(minutes=minute))


def entry(tag, minute=0.0, request="req-1"):
    return Entry((request, "power-update", tag), NOON + timedelta(minutes=minute))


def tags(events, record=()):
    return [one.tag for one in new_events(events, record)]


@pytest.mark.parametrize(
    ("record", "said", "new"),
    [
        ([], ["ON"], ["ON"]),
        ([], ["OFF", "ON", "OFF"], ["ON", "OFF"]),  # once each, where it was said last
        ([entry("ON")], ["ON"], []),
        ([OTHER, entry("OFF"), entry("ON")], ["OFF", "ON"], []),
        ([entry("OFF"), entry("ON")], ["ON", "OFF"], ["ON", "OFF"]),
        ([entry("ON"), OTHER], ["ON"], ["ON"]),  # something happened to the server since
        ([entry("ON"), entry("OFF", 0.5)], ["ON"], ["ON"]),  # an Ironic's power sync says everything under one id
        ([entry("ON", request="req-2")], ["ON"], ["ON"]),
        ([entry("ON", -10)], ["ON"], ["ON"]),  # nobody repeats a request for ten minutes
    ],
)  # fmt: skip
def test_a_repeat_is_known_by_what_is_newest(record, said, new):
    assert tags([event(tag, 1) for tag in said], record) == new


def test_what_was_kept_is_known_by_its_moment_whatever_happened_since():
    assert tags([event("ON")], [entry("ON"), OTHER]) == []
    assert tags([event("ON"), event("OFF")], [entry("ON"), OTHER]) == ["OFF"]


def test_several_requests_at_once_are_told_apart():
    said = [event("OFF"), event("ON", 1), event("ON", 2), event("OFF", 3, "req-2"), event("ON", 4)]
    assert tags(said) == ["OFF", "ON", "OFF", "ON"]
