"""Circuit breakers of brokers: one per broker URL and process, so that only the first send waits for a dead broker.

A failed send opens the breaker; from then on sends fail at once. A thread for each open breaker, never a send, probes
the broker until it answers. The pause between two probes doubles up to LONGEST_PAUSE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cells.models import masked
from cloud import log

logger = log.get(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # seconds between two probes; the pause doubles

_down: dict[str, str] = {}  # reason by broker URL
_changed = threading.Condition()
_then: list[Callable[[], None]] = []  # callbacks for a broker that is back


def known_down(broker_url: str) -> str:
    """Return why this process holds the broker to be down; "" when sends may be tried."""
    return _down.get(broker_url, "")


def record_failure(broker_url: str, reason: str, look: Callable[[], object]) -> None:
    """Open the breaker and start to probe; a no-op when it is open.

    `look` must be bounded in time and raise while the broker is down. The breaker stays closed when no thread can
    start.
    """
    name = masked(broker_url)
    with _changed:
        if broker_url in _down:
            return
        _down[broker_url] = reason
        about = (broker_url, name, look)
        looking = threading.Thread(target=_look_until_up, args=about, name="broker-probe", daemon=True)
        try:
            looking.start()
        except RuntimeError:  # no thread can start: nothing would close the breaker again
            del _down[broker_url]
            return
    logger.warning("broker.down", broker=name, reason=reason)


def when_up(tell: Callable[[], None]) -> None:
    """Register a callback, which the probing thread calls each time a broker is back."""
    _then.append(tell)


def wait_until_up(broker_url: str, seconds: float) -> bool:
    """Wait at most `seconds`; return whether the broker is up."""
    with _changed:
        return _changed.wait_for(lambda: broker_url not in _down, timeout=seconds)


def reset() -> None:
    """Close every breaker and end the probes. For tests."""
    with _changed:
        _down.clear()
        _changed.notify_all()


def _look_until_up(broker_url: str, name: str, look: Callable[[], object]) -> None:
    pause = FIRST_PAUSE
    while not wait_until_up(broker_url, pause):
        try:
            look()
        except Exception as error:  # each transport raises its own types; all mean: still down
            logger.debug("broker.still_down", broker=name, error=repr(error))
            pause = min(pause * 2, LONGEST_PAUSE)
            continue
        with _changed:
            _down.pop(broker_url, None)
            _changed.notify_all()
        logger.info("broker.up", broker=name)
        for tell in _then:
            tell()
