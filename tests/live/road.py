"""The way to an HTTP service, on which the answers to some requests are lost, or some requests are late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import requests

HOP = frozenset({"connection", "content-length", "content-encoding", "transfer-encoding", "keep-alive"})
GATE_SECONDS = 60.0


class Road:
    """Carries everything to `back`; the first answer to `request` ("PUT /path") is lost, or it never gets there.

    The next one is lost when `lost` is set back to 0. With a `gate` nothing is lost: while the gate is closed
    every such `request` waits before it is carried, at most GATE_SECONDS.
    """

    def __init__(self, back: str, request: str, *, heard: bool = True, gate: threading.Event | None = None) -> None:
        self.lost = 0
        road = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return self.carry
                raise AttributeError(name)

            def carry(self) -> None:
                is_meant = f"{self.command} {self.path}" == request
                is_lost = is_meant and gate is None and not road.lost
                if is_meant and gate is not None:
                    gate.wait(GATE_SECONDS)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if is_lost:
                    road.lost = 1
                if is_lost and not heard:
                    self.close_connection = True
                    return
                headers = {name: value for name, value in self.headers.items() if name.lower() not in {*HOP, "host"}}
                answer = requests.request(self.command, back + self.path, data=body, headers=headers, timeout=30)
                if is_lost:
                    self.close_connection = True
                    return
                self.send_response_only(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: Any) -> None:
                """Not to the tests' output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Its front."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Road:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
