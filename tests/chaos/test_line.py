"""The proxy of `make chaos` harms connections where it says it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.chaos.line import AFTER_BYTES, HOWS, Line

COMMIT, DONE = b"Q\0\0\0\x0bCOMMIT\0", b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\5I"


class Server:
    """Answers each message with the same bytes, and a COMMIT as PostgreSQL does."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            try:
                while data := connection.recv(4096):
                    self.heard.append(data)
                    connection.sendall(DONE if COMMIT in data else data)
            except ConnectionResetError:
                pass
        self.ended.set()


@contextmanager
def talk() -> Iterator[tuple[Server, Line, socket.socket]]:
    """A client's connection, which has said one thing."""
    server = Server()
    line = Line(server.port)
    try:
        with socket.create_connection(("127.0.0.1", line.port), timeout=10) as client:
            client.sendall(b"hello")
            assert client.recv(99) == b"hello"
            yield server, line, client
    finally:
        line.close()


def is_broken(client: socket.socket) -> bool:
    """Whether the other end is gone; waits for that."""
    try:
        return client.recv(99) == b""
    except ConnectionResetError:
        return True


def test_a_commit_that_is_cut_before_it_arrives_was_never_heard():
    with talk() as (server, line, client):
        line.harm("cut before COMMIT", 0)
        client.sendall(COMMIT)
        assert is_broken(client)
        assert server.ended.wait(10)
        assert server.heard == [b"hello"]


def test_a_commit_whose_answer_is_cut_was_heard():
    with talk() as (server, line, client):
        line.harm("cut after COMMIT", 0)
        client.sendall(COMMIT)
        assert is_broken(client)
        assert server.ended.wait(10)
        assert server.heard == [b"hello", COMMIT]


@pytest.mark.parametrize(("how", "heard"), [("hold before COMMIT", False), ("hold after COMMIT", True)])
def test_a_commit_that_is_held_is_answered_late(how, heard):
    with talk() as (server, line, client):
        line.harm(how, 3600)
        client.sendall(COMMIT)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(99)
        assert (COMMIT in server.heard) is heard
        line.heal()
        client.settimeout(10)
        assert client.recv(99) == DONE
        assert line.hits == 1


def test_nothing_passes_while_it_is_frozen_and_everything_afterwards():
    with talk() as (server, line, client):
        line.harm("freeze", 3600)
        client.sendall(b"anyone?")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(99)
        assert server.heard == [b"hello"]
        line.heal()
        client.settimeout(10)
        assert client.recv(99) == b"anyone?"


@pytest.mark.parametrize("how", ["cut", AFTER_BYTES])
def test_a_connection_that_is_cut_is_broken_at_both_ends(how):
    with talk() as (server, line, client):
        line.harm(how, 0)
        if how == AFTER_BYTES:
            client.sendall(b"a message")
        assert is_broken(client)
        assert server.ended.wait(10)
        assert b"a message" not in server.heard


def test_what_was_not_met_is_healed_too():
    with talk() as (_, line, client):
        for how in HOWS[2:]:
            line.harm(how, 3600)
        line.heal()
        client.sendall(COMMIT)
        assert client.recv(99) == DONE
