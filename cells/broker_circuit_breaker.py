"""Which brokers take no messages: one circuit breaker per broker URL and process, so that only the first send pays.

A send that fails opens it, and from then on sends fail at once. A thread of our own (never a send) looks for the end
of it: one look at a time for each broker, ever less often, at least every LONGEST_PAUSE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cells.models import masked
from cloud import log

logger = log.get(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # seconds between two looks: twice as long each time

_down: dict[str, str] = {}  # the reason, by URL
_changed = threading.Condition()
_then: list[Callable[[], None]] = []  # what is called when a broker is back


def known_down(broker_url: str) -> str:
    """Why the broker is held to be down in this process; "" when sends may be tried."""
    return _down.get(broker_url, "")


def seen_down(broker_url: str, reason: str, look: Callable[[], object]) -> None:
    """Open the breaker and begin to look for its end: `look` is bounded in time, and raises while it is down."""
    name = masked(broker_url)
    with _changed:
        if broker_url in _down:
            return
        _down[broker_url] = reason
        about = (broker_url, name, look)
        looking = threading.Thread(target=_look_until_up, args=about, name="broker-look", daemon=True)
        try:
            looking.start()
        except RuntimeError:  # no more threads: nothing would close it again
            del _down[broker_url]
            return
    logger.warning("broker.down", broker=name, reason=reason)


def when_up(tell: Callable[[], None]) -> None:
    """Have this called, from the thread that looked, each time a broker is back."""
    _then.append(tell)


def wait_until_up(broker_url: str, seconds: float) -> bool:
    """Whether the broker is up within so many seconds."""
    with _changed:
        return _changed.wait_for(lambda: broker_url not in _down, timeout=seconds)


def reset() -> None:
    """Close every breaker, and end the looks. For tests."""
    with _changed:
        _down.clear()
        _changed.notify_all()


def _look_until_up(broker_url: str, name: str, look: Callable[[], object]) -> None:
    pause = FIRST_PAUSE
    while not wait_until_up(broker_url, pause):
        try:
            look()
        except Exception as error:  # every transport raises its own kinds, and all mean: not yet
            logger.debug("broker.still_down", broker=name, error=repr(error))
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        with _changed:
            _down.pop(broker_url, None)
            _changed.notify_all()
        logger.info("broker.up", broker=name)
        for tell in _then:
            tell()
