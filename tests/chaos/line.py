"""A TCP proxy between the processes of a cloud and one PostgreSQL database: it cuts connections, or lets nothing pass.

A COMMIT that is cut before it reaches the server is rolled back; one whose answer is cut is done, and its client does
not know. One that is held arrives late: its client may have given up long before.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

COMMIT = b"COMMIT\0"  # as psycopg sends it, in a message of its own
CHUNK = 1 << 16
# now, to all connections; to the next ones that commit
NOW, AT_COMMIT = ("cut", "freeze"), ("cut before COMMIT", "cut after COMMIT", "hold before COMMIT", "hold after COMMIT")
AFTER_BYTES = "cut after bytes"  # to the next one that has sent so many
HOWS = (*NOW, *AT_COMMIT, AFTER_BYTES)
BYTES_PER_SECOND = 500  # of `seconds`: how many that are


@dataclass(frozen=True, slots=True)
class Trap:
    """What is done to the next connection that commits."""

    how: str
    seconds: float


@dataclass(slots=True, eq=False)
class Wire:
    """One connection: both its ends, and what is to be done with the server's next answer."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    answer: Trap | None = None

    def cut(self) -> None:
        """Both ends see it broken."""
        self.client.transport.abort()
        self.server.transport.abort()


class Line:
    """All connections to one port; `port` is the one to connect to instead."""

    def __init__(self, behind: int) -> None:
        self.behind, self.port, self.hits = behind, 0, 0
        self._wires: set[Wire] = set()
        self._traps: deque[Trap] = deque()
        self._bytes_left = 0  # 0: nothing is cut after so many
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"line to {behind}", daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def harm(self, how: str, seconds: float) -> bool:
        """Do one of HOWS; what is held or frozen is so for so many seconds. Always True: it is done, or will be."""
        self._loop.call_soon_threadsafe(self._harm, how, seconds)
        return True

    def heal(self) -> None:
        """Everything passes from now on."""
        self._loop.call_soon_threadsafe(self._heal)

    def close(self) -> None:
        """Cut all, listen no more."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        self._stop, self._healed, self._thawed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._thawed.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._heal()
        for wire in list(self._wires):
            wire.cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _harm(self, how: str, seconds: float) -> None:
        self._healed.clear()
        if how == "cut":
            for wire in list(self._wires):
                wire.cut()
                self.hits += 1
        elif how == "freeze":
            self._thawed.clear()
            self._loop.call_later(seconds, self._thawed.set)
            self.hits += 1
        elif how == AFTER_BYTES:
            self._bytes_left = max(1, int(seconds * BYTES_PER_SECOND))
        else:
            self._traps.append(Trap(how, seconds))

    def _heal(self) -> None:
        self._traps.clear()
        self._bytes_left = 0
        self._thawed.set()
        self._healed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.behind)
        except OSError:
            writer.transport.abort()
            return
        wire = Wire(writer, server)
        self._wires.add(wire)
        try:
            with suppress(OSError):
                await asyncio.gather(self._send(wire, reader), self._answer(wire, answers))
        finally:
            wire.cut()
            self._wires.discard(wire)

    async def _send(self, wire: Wire, reader: asyncio.StreamReader) -> None:
        """Client to server."""
        while data := await reader.read(CHUNK):
            await self._thawed.wait()
            if self._bytes_left:
                self._bytes_left = max(0, self._bytes_left - len(data))
                if not self._bytes_left:
                    self.hits += 1
                    wire.server.write(data[: len(data) // 2])  # half a message
                    wire.cut()
                    return
            if self._traps and COMMIT in data:
                trap = self._traps.popleft()
                self.hits += 1
                if trap.how == "cut before COMMIT":
                    wire.cut()
                    return
                if trap.how == "hold before COMMIT":
                    await self._hold(trap.seconds)
                else:
                    wire.answer = trap
            wire.server.write(data)
            await wire.server.drain()
        wire.server.write_eof()

    async def _answer(self, wire: Wire, answers: asyncio.StreamReader) -> None:
        """Server to client."""
        while data := await answers.read(CHUNK):
            await self._thawed.wait()
            trap, wire.answer = wire.answer, None
            if trap is not None and trap.how == "cut after COMMIT":
                wire.cut()
                return
            if trap is not None:
                await self._hold(trap.seconds)
            wire.client.write(data)
            await wire.client.drain()
        wire.cut()

    async def _hold(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._healed.wait(), seconds)
