"""Connecting to a broker whose names have addresses that swallow packets, or soon have others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.lying_dns import LyingDns, black_hole
from zkconsumer.broker import dialing
from zkconsumer.broker.dialing import dial
from zkconsumer.servers.waiting import free_port

HOLES = ("127.0.0.11", "127.0.0.12")
LIVE = "127.0.0.13"
CLOSED = "127.0.0.14"
SECONDS = 30.0


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which ``HOLES`` swallow packets and ``LIVE`` takes connections."""
    number = free_port()
    with contextlib.ExitStack() as stack:
        for address in HOLES:
            stack.enter_context(black_hole(address, number))
        stack.enter_context(socket.create_server((LIVE, number)))
        yield number


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> LyingDns:
    """The resolver."""
    return LyingDns(monkeypatch)


def connected(*listeners: tuple[str, int]) -> tuple[str, int]:
    """Connect; return the address of the socket and the number of its listener."""
    sock, number = dial(listeners, SECONDS, lambda: False)
    with sock:
        return str(sock.getpeername()[0]), number


def test_addresses_that_swallow_packets_cost_a_quarter_of_a_second(
    dns: LyingDns, port: int
) -> None:
    """Not the timeout of the connection for each of them."""
    dns.answers["k.test"] = [*HOLES, CLOSED, LIVE]
    begun = time.monotonic()
    assert connected(("k.test", port)) == (LIVE, 0)
    assert time.monotonic() - begun < SECONDS / 3


def test_a_name_is_resolved_again_while_its_addresses_do_not_answer(
    dns: LyingDns, port: int
) -> None:
    """The server has moved, and DNS knows it only now."""
    dns.answers["k.test"] = [HOLES[0], CLOSED]

    def move() -> None:
        dns.answers["k.test"] = [LIVE]

    moved = threading.Timer(0.5, move)
    moved.start()
    begun = time.monotonic()
    assert connected(("k.test", port)) == (LIVE, 0)
    assert time.monotonic() - begun < SECONDS / 3
    moved.join()


def test_the_next_listener_has_its_turn_after_a_while(
    dns: LyingDns, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if the first one refuses. Its name is not looked up before."""
    dns.answers |= {"in.test": [HOLES[0]], "out.test": [LIVE], "closed.test": [CLOSED]}
    assert connected(("out.test", port), ("in.test", port)) == (LIVE, 0)
    assert dns.asked == ["out.test"]
    monkeypatch.setattr(dialing, "_NEXT_LISTENER_S", SECONDS)
    assert connected(("closed.test", port), ("out.test", port)) == (LIVE, 1)
    monkeypatch.setattr(dialing, "_NEXT_LISTENER_S", 0.1)
    assert connected(("in.test", port), ("out.test", port)) == (LIVE, 1)


def test_the_error_has_the_fault_of_each_address(dns: LyingDns, port: int) -> None:
    """With the address, where a name has it."""
    dns.answers |= {"a.test": [HOLES[0], CLOSED], "b.test": []}
    with pytest.raises(OSError) as caught:
        dial([("a.test", port), ("b.test", port)], 0.5, lambda: False)
    text = str(caught.value)
    assert f"{CLOSED}: Connection refused" in text
    assert f"{HOLES[0]}: no connection within 0.5 s" in text
    with pytest.raises(OSError, match=r"^Name or service not known$"):
        dial([("b.test", port)], SECONDS, lambda: False)
    with pytest.raises(OSError, match=r"^Connection refused$"):
        dial([(CLOSED, port)], SECONDS, lambda: False)
    with pytest.raises(OSError, match=f"b.test:{port}: Name or service not known"):
        dial([(CLOSED, port), ("b.test", port)], SECONDS, lambda: False)


def test_another_thread_ends_an_attempt(port: int) -> None:
    """So the end of a member does not wait for the timeout."""
    ended = threading.Event()
    threading.Timer(0.2, ended.set).start()
    begun = time.monotonic()
    with pytest.raises(OSError, match="this client closed the connection"):
        dial([(HOLES[0], port)], SECONDS, ended.is_set)
    assert time.monotonic() - begun < SECONDS / 3
