"""The guests that are being shut down on this host: their keeper, and the scribe who writes down what it sees.

The keeper needs the hypervisor only. What it sees goes to the steps that wait for it as soon as the cell's database
answers.
"""

from __future__ import annotations

import threading

from django.db import DatabaseError, close_old_connections

from cells.context import target_cell
from cloud import log, metrics
from compute import grace, journal
from compute.models import Step
from compute.virt.clock import Clock
from compute.virt.keeper import Keeper
from tasks import worker

logger = log.get(__name__)
AGAIN = 1.0  # seconds until an absent database is asked again


class Scribe:
    """One thread; of each guest only the newest word is written."""

    def __init__(self, me: worker.Worker) -> None:
        self._me = me
        self._changed = threading.Condition()
        self._words: dict[str, Clock] = {}
        self._closing = False
        threading.Thread(target=self._run, name="grace-scribe", daemon=True).start()

    def hear(self, server_id: str, clock: Clock) -> None:
        """To be written down soon. Does not block."""
        with self._changed:
            self._words[server_id] = clock
            self._changed.notify_all()

    def close(self) -> None:
        """What is not written yet is known to the guests themselves."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                self._changed.wait_for(lambda: self._words or self._closing)
                words, self._words = self._words, {}
            left = self._write(words)
            with self._changed:
                self._words = left | self._words
                if left:
                    self._changed.wait(AGAIN)

    def _write(self, words: dict[str, Clock]) -> dict[str, Clock]:
        """What could not be written."""
        left: dict[str, Clock] = {}
        for server_id, clock in words.items():
            try:
                if left:  # the database is away for all alike
                    raise DatabaseError
                close_old_connections()
                with target_cell(self._me.alias):
                    waited = journal.note_clock(self._me.host, server_id, clock)
            except DatabaseError as error:
                if not left:
                    logger.warning("grace.database_away", error=repr(error))
                left[server_id] = clock
            else:
                _count(server_id, clock, waited)
        return left


_posts: list[tuple[Keeper, Scribe]] = []


def start(me: worker.Worker) -> None:
    """From now on steps wait without a thread. Clocks of a past life go on, with or without the database."""
    if me.driver is None:
        return
    scribe = Scribe(me)
    keeper = Keeper(me.driver, scribe.hear)
    _posts.append((keeper, scribe))
    grace.attend(keeper)
    keeper.start()


def look_after_waiting(me: worker.Worker) -> int:
    """Steps of a past life that wait for a guest: each is told where its guest is by now. How many there are."""
    waiting = Step.objects.filter(host=me.host, state=Step.State.WAITING)
    servers = set(waiting.values_list("server_id", flat=True))
    for server_id in servers:
        grace.mind(server_id)
    return len(servers)


def stop() -> None:
    """Before the driver is closed."""
    grace.attend(None)
    for keeper, scribe in _posts:
        keeper.close()
        scribe.close()


def _count(server_id: str, clock: Clock, waited: int) -> None:
    """Once: the second time somebody hears of an end nobody waits for it any more."""
    if clock.runs or not waited:
        return
    seconds = clock.ended - clock.begun
    metrics.GUEST_SHUTDOWN_SECONDS.labels(clock.how).observe(seconds)
    logger.info("grace.ended", server=server_id, how=clock.how, seconds=round(seconds, 1), signals=clock.signals)
