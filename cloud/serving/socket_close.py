"""Closing a socket that listens without a client being cut off.

Linux resets what stands in the queue of a socket that is closed, and who was let into it a moment before had every
reason to send a request. So first nobody new is let in, by a filter that drops SYN packets: a client sends its SYN
again after a second, finds the port closed and is refused. Meanwhile the queue is emptied.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

HANDSHAKE = 0.1  # seconds; who has our answer to its SYN by now comes in this time
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python does not name
# Classic BPF (linux/filter.h) on a packet that begins with its TCP header: drop it if SYN is among the flags.
_LOAD_BYTE, _JUMP_IF_SET, _RETURN = 0x30, 0x45, 0x06
_FLAGS, _SYN, _ALL = 13, 0x02, 0xFFFFFFFF
_NO_SYN = ((_LOAD_BYTE, 0, 0, _FLAGS), (_JUMP_IF_SET, 0, 1, _SYN), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ALL))


def turn_away(listeners: Iterable[Any]) -> None:
    """Let nobody new into the queues of these sockets, in any process that has them."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _NO_SYN))
    program = struct.pack("HP", len(_NO_SYN), ctypes.addressof(code))
    for listener in listeners:
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def empty(listeners: Iterable[Any], accept: Callable[[Any], None], seconds: float) -> None:
    """Take in whoever stands in the queues, or comes to stand there within this time."""
    queue = select.poll()
    known = {listener.fileno(): listener for listener in listeners}
    for number in known:
        queue.register(number, select.POLLIN)
    end = time.monotonic() + seconds
    while ready := queue.poll(max(0.0, end - time.monotonic()) * 1000):
        for number, _ in ready:
            accept(known[number])
