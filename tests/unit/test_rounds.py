"""A thread that looks again and again."""

from __future__ import annotations

import threading

from compute.virt.wakeable_thread import WakeableThread


def test_what_was_said_while_it_looked_is_looked_at_at_once():
    """A clock that was kept between the look and the pause was seen when the next one came."""
    looks, looked, go_on = [], threading.Event(), threading.Event()

    def look():
        looks.append(len(looks))
        if len(looks) == 1:
            looked.set()
            assert go_on.wait(10)
        elif len(looks) == 2:
            again.set()

    again = threading.Event()
    rounds = WakeableThread("looks", look)
    rounds.start()
    assert looked.wait(10)
    rounds.wake()
    go_on.set()
    assert again.wait(10)
    rounds.close()
    rounds.start()
    rounds.wake()
    assert looks == [0, 1]
