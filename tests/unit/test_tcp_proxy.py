"""What the proxy that disturbs connections drops, and what it passes on."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.support.tcp_proxy import TcpProxy


def frame(number: int, body: bytes = b"body") -> bytes:
    """A frame of ZooKeeper or Kafka: the length, the request's number, the rest."""
    return struct.pack(">ii", 4 + len(body), number) + body


@contextlib.contextmanager
def both_ends() -> Iterator[tuple[TcpProxy, socket.socket, socket.socket]]:
    """A proxy with one connection through it: the server's end and the client's end."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = stack.enter_context(TcpProxy(listener.getsockname()[1]))
        client = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 10))
        server = stack.enter_context(listener.accept()[0])
        yield proxy, server, client


def received(client: socket.socket, expected: bytes) -> bytes:
    """Return as many bytes as expected."""
    found = b""
    while len(found) < len(expected) and (data := client.recv(len(expected) - len(found))):
        found += data
    return found


@pytest.mark.parametrize("pieces", ["whole", "by byte"])
def test_an_answer_is_lost_and_a_watch_event_is_not(pieces: str) -> None:
    """ZooKeeper's client could not notice a lost event, and no network loses only that."""
    event, lost, kept = frame(-1, b"changed"), frame(7), frame(8)
    with both_ends() as (proxy, server, client):
        proxy.drop("answers")
        sent = event + lost + kept
        for piece in [sent] if pieces == "whole" else [bytes([one]) for one in sent]:
            server.sendall(piece)
        assert received(client, event + kept) == event + kept
        assert not proxy.dropping


def test_what_has_no_length_passes_while_nothing_is_to_be_lost() -> None:
    """ZooKeeper's four-letter words are shorter than the head of a frame."""
    with both_ends() as (_, server, client):
        server.sendall(b"imok")
        assert received(client, b"imok") == b"imok"


def test_a_delay_is_the_length_of_the_line_and_not_its_width() -> None:
    """Pieces that arrive soon after each other are delivered soon after each other, not one delay
    apart."""
    delay, pieces = 0.5, 5
    with both_ends() as (proxy, server, client):
        proxy.delay(delay, "answers")
        begun = time.monotonic()
        for number in range(pieces):
            server.sendall(frame(number))
            time.sleep(0.02)  # so that the proxy reads them one by one
        whole = b"".join(map(frame, range(pieces)))
        first = received(client, frame(0))
        after_first = time.monotonic() - begun
        assert first + received(client, whole[len(first) :]) == whole
        assert after_first >= delay
        assert time.monotonic() - begun < 1.9 * delay


def test_small_pieces_do_not_wait_for_acknowledgements() -> None:
    """With Nagle's algorithm, each second piece would take 40 ms longer."""
    rounds = 200
    with both_ends() as (_, server, client):
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = time.monotonic()
        for number in range(rounds):
            client.sendall(frame(number))
            assert received(server, frame(number))
            server.sendall(frame(number))
            server.sendall(frame(-1))
            assert received(client, frame(number) + frame(-1))
        assert time.monotonic() - begun < rounds * 0.008


def test_delayed_data_arrives_before_the_end_of_the_connection() -> None:
    """A server answers and closes. The answer is delivered first."""
    with both_ends() as (proxy, server, client):
        proxy.delay(0.1, "answers")
        server.sendall(b"goodbye")
        server.shutdown(socket.SHUT_RDWR)
        assert received(client, b"goodbye more") == b"goodbye"
