"""A TCP proxy to a database that can be broken in three ways: refuse, silent, slow. It is a process of its own.

Run as `python -m bench.proxy FRONT BACK`: each line on stdin is a mode (up, refuse, silent, slow) and is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

from deploy.local.ports import any_free

SLOW_SECONDS = 5.0


class TcpProxy:
    """One front port, one back port, and the mode of all traffic between them."""

    def __init__(self, front: int, back: int) -> None:
        self._front, self._back, self._mode = front, back, "up"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def obey(self, mode: str) -> None:
        """Set the mode, also for open connections."""
        self._mode = mode
        if mode == "refuse" and self._server is not None:
            self._server.close()
            self._server = None
            for writer in list(self._open):
                writer.transport.abort()
        elif mode != "refuse" and self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._front)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._back)
            self._open.add(back_writer)
            await asyncio.wait(
                [asyncio.create_task(self._carry(reader, back_writer)),
                 asyncio.create_task(self._carry(back_reader, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )  # fmt: skip
            back_writer.transport.abort()
            self._open.discard(back_writer)
        writer.transport.abort()
        self._open.discard(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self._mode == "slow":
                    await asyncio.sleep(SLOW_SECONDS)
                while self._mode == "silent":
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()


class Proxy:
    """The proxy process, as a benchmark controls it."""

    def __init__(self, back: int) -> None:
        self.port = any_free()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.proxy", str(self.port), str(back)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.order("up")

    def order(self, mode: str) -> None:
        """Set the mode; it is in effect when this returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(mode, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        if answer != mode:
            raise RuntimeError(f"the proxy answered {answer!r}")

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait(10)


async def _main(front: int, back: int) -> None:
    road, loop = TcpProxy(front, back), asyncio.get_running_loop()
    while mode := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        await road.obey(mode)
        print(mode, flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
